"""Tests the system endpoints on a minimal application: health, readiness, version, models and metrics."""

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from antiphon.config import Config
from antiphon.engines.base import EngineStatus
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.routing import Router, collect_routes
from antiphon.transport.operating.system import SystemEndpoints
from tests.support.asgi_client import call
from tests.transport.minimal_app import MinimalApp

pytestmark = pytest.mark.anyio


@pytest.fixture
def edge() -> MinimalApp:
    return MinimalApp(Config())


@pytest.mark.shows("H.5", "H.6", "H.7")
async def test_health_version_and_readiness_are_served(edge: MinimalApp) -> None:
    assert (await call(edge.app, "GET", "/health")).json() == {"status": "ok"}
    assert (await call(edge.app, "GET", "/version")).json() == {"version": "1.2.3"}
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready"}


@pytest.mark.shows("H.5", "H.6")
async def test_an_unhealthy_engine_makes_the_server_unready_but_healthy(edge: MinimalApp) -> None:
    edge.directory.reasons = ["The fake engine is not ready.", "Nor is the other."]
    answer = await call(edge.app, "GET", "/ready")
    assert answer.status == 503
    assert answer.error["message"] == "The fake engine is not ready. Nor is the other."
    assert answer.header(b"retry-after") == b"1"
    assert (await call(edge.app, "GET", "/health")).status == 200


@pytest.mark.shows("H.6")
async def test_readiness_counts_the_engines_that_are_up(edge: MinimalApp) -> None:
    up = EngineStatus(name="a", engine="fake", healthy=True)
    edge.directory.engines = [up]
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready"}
    edge.directory.engines = [up, EngineStatus(name="b", engine="fake", healthy=False), replace(up, draining=True)]
    assert (await call(edge.app, "GET", "/ready")).json() == {"status": "ready", "engines": {"up": 1, "all": 3}}


class UnhealthyStore(StoreProbe):
    def __init__(self) -> None:
        self.name = "sqlite"

    def healthy(self) -> bool:
        return False


@pytest.mark.shows("H.6")
async def test_an_unhealthy_store_makes_the_server_unready(edge: MinimalApp) -> None:
    system = SystemEndpoints(edge.directory, edge.metrics, edge.authenticator, "1", UnhealthyStore())
    edge.directory.reasons = ["The fake engine is not ready."]
    app = App(Router(collect_routes(system)), edge.authenticator, edge.metrics, edge.lifecycle)
    answer = await call(app, "GET", "/ready")
    assert answer.status == 503
    assert answer.error["message"] == "The fake engine is not ready. The sqlite store does not respond."


async def test_a_server_that_shuts_down_is_not_ready(edge: MinimalApp) -> None:
    edge.authenticator.close()
    answer = await call(edge.app, "GET", "/ready")
    assert (answer.status, answer.error["message"]) == (503, "The server is shutting down.")


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
@pytest.mark.shows("G.5")
async def test_models_are_listed_in_openai_format(edge: MinimalApp, path: str) -> None:
    listed = (await call(edge.app, "GET", path)).json()
    fields = [[model[name] for name in ("id", "object", "created", "owned_by")] for model in listed["data"]]
    assert (listed["object"], fields) == (
        "list",
        [["small", "model", 1, "antiphon"], ["org/large", "model", 2, "org"]],
    )


@pytest.mark.parametrize("path", ["/v1/models/org/large", "/v1/models/org%2Flarge", "/models/org/large"])
@pytest.mark.shows("G.5")
async def test_a_model_name_may_contain_slashes(edge: MinimalApp, path: str) -> None:
    assert (await call(edge.app, "GET", path)).json()["id"] == "org/large"


@pytest.mark.parametrize("name", ["nobody", "small/", "%00", "%ed%a0%80", "..%2f..%2fetc", "a" * 60_000])
@pytest.mark.shows("H.16")
async def test_an_unknown_model_is_not_found(edge: MinimalApp, name: str) -> None:
    answer = await call(edge.app, "GET", f"/v1/models/{name}")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"


@pytest.mark.shows("H.8")
async def test_metrics_are_in_prometheus_format(edge: MinimalApp) -> None:
    await call(edge.app, "GET", "/health")
    answer = await call(edge.app, "GET", "/metrics")
    assert answer.header(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert families["antiphon_requests"].samples[0].labels == {"route": "/health", "status": "200"}
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
