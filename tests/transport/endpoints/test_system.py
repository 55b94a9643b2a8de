import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from antiphon.config import Config
from antiphon.engines.base import State
from antiphon.transport.endpoints.system import System
from antiphon.transport.middleware.app import App
from tests.support.asgi_client import call
from tests.transport.minimal_app import Edge

pytestmark = pytest.mark.anyio


@pytest.fixture
def edge() -> Edge:
    return Edge(Config())


@pytest.mark.shows("H.5", "H.6", "H.7")
async def test_health_and_version_answer(edge: Edge) -> None:
    assert (await call(edge.app, "GET", "/health")).json() == {"status": "ok"}
    assert (await call(edge.app, "GET", "/version")).json() == {"version": "1.2.3"}
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready"}


@pytest.mark.shows("H.5", "H.6")
async def test_a_sick_engine_makes_us_not_ready_but_healthy(edge: Edge) -> None:
    edge.shelf.reasons = ["The fake engine is not ready.", "Nor is the other."]
    answer = await call(edge.app, "GET", "/ready")
    assert answer.status == 503
    assert answer.error["message"] == "The fake engine is not ready. Nor is the other."
    assert answer.header(b"retry-after") == b"1"
    assert (await call(edge.app, "GET", "/health")).status == 200


@pytest.mark.shows("H.6")
async def test_of_several_engines_it_is_said_how_many_are_up(edge: Edge) -> None:
    well = State(name="a", engine="fake", healthy=True)
    edge.shelf.engines = [well]
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready"}
    edge.shelf.engines = [well, State(name="b", engine="fake", healthy=False), replace(well, draining=True)]
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready", "engines": {"up": 1, "all": 3}}


class Sick:
    name = "sqlite"

    def healthy(self) -> bool:
        return False


@pytest.mark.shows("H.6")
async def test_a_sick_store_makes_us_not_ready_too(edge: Edge) -> None:
    system = System(edge.shelf, edge.metrics, edge.guard, "1", Sick())
    edge.shelf.reasons = ["The fake engine is not ready."]
    answer = await call(App(system.routes(), edge.guard, edge.metrics, edge.life), "GET", "/ready")
    assert answer.status == 503
    assert answer.error["message"] == "The fake engine is not ready. The sqlite store does not answer."


async def test_a_server_that_shuts_down_is_not_ready(edge: Edge) -> None:
    edge.guard.close()
    answer = await call(edge.app, "GET", "/ready")
    assert (answer.status, answer.error["message"]) == (503, "The server is shutting down.")


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
@pytest.mark.shows("G.5")
async def test_models_are_listed_as_openai_lists_them(edge: Edge, path: str) -> None:
    assert (await call(edge.app, "GET", path)).json() == {
        "object": "list",
        "data": [
            {"id": "small", "object": "model", "created": 1, "owned_by": "antiphon"},
            {"id": "org/large", "object": "model", "created": 2, "owned_by": "org"},
        ],
    }


@pytest.mark.parametrize("path", ["/v1/models/org/large", "/v1/models/org%2Flarge", "/models/org/large"])
@pytest.mark.shows("G.5")
async def test_a_models_name_may_have_slashes(edge: Edge, path: str) -> None:
    assert (await call(edge.app, "GET", path)).json()["id"] == "org/large"


@pytest.mark.parametrize("name", ["nobody", "small/", "%00", "%ed%a0%80", "..%2f..%2fetc", "a" * 60_000])
@pytest.mark.shows("H.16")
async def test_an_unknown_model_is_not_found(edge: Edge, name: str) -> None:
    answer = await call(edge.app, "GET", f"/v1/models/{name}")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"


@pytest.mark.shows("H.8")
async def test_metrics_are_in_prometheus_format(edge: Edge) -> None:
    await call(edge.app, "GET", "/health")
    answer = await call(edge.app, "GET", "/metrics")
    assert answer.header(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert families["antiphon_requests"].samples[0].labels == {"route": "/health", "status": "200"}
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
