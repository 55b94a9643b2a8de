"""Probes and health of an HTTP engine: while it is up, while it is down, and when it returns. Also its key, redirects
and TLS.
"""

import asyncio
import logging
import ssl

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_engine
from antiphon.engines.http import health_monitor
from antiphon.engines.http.base import HttpEngine
from antiphon.errors import ModelNotFound, StartupError, Unavailable
from tests.engines.http.stubs.chat_stub import EngineStub, run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app, open_engine, post_response, run_generation
from tests.engines.unix_server import json_response, read_request
from tests.support.asgi_client import call
from tests.support.local_servers import Reader, Writer, reserve_port, serve_tcp
from tests.support.paths import TLS

pytestmark = pytest.mark.anyio


async def wait_for_health(engine: Engine, healthy: bool) -> None:
    async with asyncio.timeout(30):
        while True:
            if engine.is_healthy() is healthy:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.21")
async def test_models_and_capabilities_of_an_engine_are_probed(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url) as engine:
        assert [model.id for model in engine.models()] == ["m"]
        assert engine.serves("m")
        assert not engine.serves("n")
        capabilities = await engine.capabilities("m")
        version = {"vllm": "0.32.0", "sglang": "0.5.9", "ovms": "2026.3", "llamacpp-server": "b9000-abc"}
        assert capabilities.version == {**version, "ollama": "0.40.12", "openai": None}[name]
        assert capabilities.context == (32768 if name in ("vllm", "sglang", "llamacpp-server") else None)
        assert capabilities.slots == (2 if name == "llamacpp-server" else None)
        assert capabilities.can_count_tokens is (name in ("vllm", "sglang", "llamacpp-server"))
        assert capabilities.level == "chat"


async def test_an_engine_with_few_endpoints_is_usable() -> None:
    """A model list is enough, and not even that is needed if the operator configures the models."""

    async def list_models_only(reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            models = received.startswith(b"/v1/models") and listed
            writer.write(json_response(b'{"data":[{"id":"x"}]}') if models else json_response(b"no", "404 Not Found"))

    for name in DIALECTS:
        listed = name != "ovms"
        async with (
            serve_tcp(list_models_only) as port,
            open_engine(f"{name}://127.0.0.1:{port}", model=("x",)) as engine,
        ):
            assert [model.id for model in engine.models()] == ["x"]
            capabilities = await engine.capabilities("x")
            assert (capabilities.version, capabilities.context, capabilities.can_count_tokens) == (None, None, False)


async def test_only_the_configured_models_are_served() -> None:
    async with run_stub("vllm") as stub, open_engine(stub.url, model=("other",)) as engine:
        assert [model.id for model in engine.models()] == ["other"]


async def test_a_configured_model_that_the_engine_does_not_list_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run_stub("vllm") as stub, open_engine(stub.url, model=("mistyped",)) as engine:
        assert isinstance(engine, HttpEngine)
        await engine.probe()
        await engine.probe()
    lines = [record.getMessage() for record in caplog.records if "mistyped" in record.getMessage()]
    assert lines[0] == "The vllm engine does not list these configured models: mistyped"
    assert len([line for line in lines if "does not list" in line]) == 1


async def test_fields_that_an_ollama_model_does_not_support_are_rejected() -> None:
    ollama = DIALECTS["ollama"]
    stub = EngineStub(replace(ollama, asides={**ollama.asides, "/api/show": {"capabilities": ["completion"]}}))
    async with serve_tcp(stub.serve) as port, open_app(f"ollama://127.0.0.1:{port}") as app:
        for fields in ({"reasoning": {"effort": "high"}}, {"tools": [{"type": "function", "name": "f"}]}):
            response = await post_response(app, **fields)
            assert response.status == 400
            assert "ollama" in response.error["message"]


@pytest.mark.shows("C.21", "C.28")
async def test_an_engine_that_is_down_at_startup_is_found_when_it_starts() -> None:
    with reserve_port() as port:
        await _check_late_start(port)


async def _check_late_start(port: int) -> None:
    async with open_app(f"vllm://127.0.0.1:{port}") as app:
        assert (await call(app, "GET", "/ready")).status == 503
        response = await post_response(app)
        assert response.status == 503
        assert response.error["code"] == "service_unavailable"
        assert response.header(b"retry-after")
        async with serve_tcp(EngineStub(DIALECTS["vllm"]).serve, port, reuse_port=True):
            async with asyncio.timeout(30):
                while True:
                    if (await call(app, "GET", "/ready")).status == 200:
                        break
                    await asyncio.sleep(0)
            assert (await post_response(app)).json()["status"] == "completed"


@pytest.mark.shows("C.21", "C.28")
async def test_a_lost_engine_is_detected_and_probed_again_when_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with reserve_port() as port:
        await _check_restart(port)
    lines = [record.getMessage() for record in caplog.records if record.name == health_monitor.__name__]
    assert [line.split(" at ")[1].split(" ", 1)[1].split(" (")[0].split(",")[0].split(";")[0] for line in lines] == [
        "is available",
        "is unavailable",
        "is available",
    ]


async def _check_restart(port: int) -> None:
    async with serve_tcp(EngineStub(DIALECTS["vllm"]).serve, port, reuse_port=True):
        engine = build_engine(Config.from_settings(engine=f"vllm://127.0.0.1:{port}"))
        await engine.open()
        assert (await run_generation(engine)).error is None
    try:
        result = await run_generation(engine)
        assert isinstance(result.error, Unavailable)
        await wait_for_health(engine, False)
        assert engine.serves("m"), "the last probe result is retained"
        other = EngineStub(DIALECTS["sglang"])
        async with serve_tcp(other.serve, port, reuse_port=True):
            await wait_for_health(engine, True)
            assert (await engine.capabilities("m")).version is None
            assert (await run_generation(engine)).error is None
    finally:
        await engine.close()


async def test_a_probe_result_is_replaced_only_when_it_changes() -> None:
    versions, probed = ["1", "1", "2"], asyncio.Event()

    async def probe() -> health_monitor.Probe:
        probed.set()
        return health_monitor.Probe(version=versions.pop(0))

    async def probe_again() -> None:
        probed.clear()
        monitor.probe_soon()
        async with asyncio.timeout(30):
            await probed.wait()
        await asyncio.sleep(0)

    monitor = health_monitor.HealthMonitor("It", "here", probe)
    await monitor.start()
    first = monitor.last_probe
    await probe_again()
    assert monitor.last_probe is first
    await probe_again()
    assert monitor.last_probe is not first
    await monitor.stop()


async def test_model_names_are_unavailable_until_the_engine_has_been_reached() -> None:
    async with serve_tcp(EngineStub(DIALECTS["vllm"]).serve) as port:
        pass
    async with open_app(f"vllm://127.0.0.1:{port}", served_model_name=("alias",)) as app:
        assert (await post_response(app, model="alias")).status == 503
        assert (await post_response(app, model="else")).status == 503
    async with run_stub("vllm") as stub, open_app(stub.url) as app:
        response = await post_response(app, model="else")
        assert (response.status, response.error["code"]) == (ModelNotFound.status, ModelNotFound.code)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_rejected_key_stops_the_startup(status: str) -> None:
    async def reject_key(reader: Reader, writer: Writer) -> None:
        while True:
            await read_request(reader)
            writer.write(json_response(b'{"error":"sk-wrong is unknown"}', status))

    async with serve_tcp(reject_key) as port:
        with pytest.raises(StartupError, match=r"refused access .*ANTIPHON_ENGINE_KEY") as caught:
            async with open_engine(f"vllm://127.0.0.1:{port}", engine_key="sk-wrong"):
                pass
        assert "sk-wrong" not in str(caught.value)


def get_authorization_headers(stub: EngineStub) -> list[str]:
    return [line for head in stub.heads for line in head.split("\r\n") if line.lower().startswith("authorization")]


async def test_the_key_is_sent_in_every_request_and_never_printed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_stub("vllm") as stub:
        async with open_engine(stub.url, engine_key="sk-secret") as engine:
            assert (await run_generation(engine)).error is None
            assert "sk-secret" not in repr(vars(engine)["settings"]) + repr(engine)
        assert get_authorization_headers(stub) == ["Authorization: Bearer sk-secret"] * len(stub.heads)
        assert all(f"Host: {stub.url.removeprefix('vllm://')}\r\n" in head for head in stub.heads)
        assert "sk-secret" not in caplog.text
    async with run_stub("vllm") as stub, open_engine(stub.url) as engine:
        assert not get_authorization_headers(stub)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_does_not_leak_the_key(status: int) -> None:
    canary: list[bytes] = []

    async def record(reader: Reader, writer: Writer) -> None:
        canary.append(await reader.read(1))

    async def redirect(reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            if received.startswith(b"/v1/models"):
                writer.write(json_response(b'{"data":[{"id":"m"}]}'))
            else:
                location = f"\r\nLocation: http://127.0.0.1:{other_port}/\r\n\r\n".encode()
                writer.write(json_response(b"", f"{status} Found").replace(b"\r\n\r\n", location, 1))

    async with (
        serve_tcp(record) as other_port,
        serve_tcp(redirect) as port,
        open_engine(f"vllm://127.0.0.1:{port}", engine_key="sk-secret") as engine,
    ):
        result = await run_generation(engine)
        assert result.error is not None
        assert "redirect" in result.error.message
    assert not canary


def make_tls_context() -> ssl.SSLContext:
    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls_context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return tls_context


async def test_tls_requires_a_trusted_certificate_for_the_host_name() -> None:
    stub = EngineStub(DIALECTS["vllm"])
    async with serve_tcp(stub.serve, ssl=make_tls_context()) as port:
        url = f"vllm+https://localhost:{port}"
        async with open_engine(url, engine_ca=TLS / "certificate.pem", engine_key="sk-secret") as engine:
            assert (await run_generation(engine)).text == "You said: hi"
        request_count = len(stub.heads)
        async with open_engine(
            url, model=("m",), engine_key="sk-secret"
        ) as engine:  # not in the trust store of the system
            result = await run_generation(engine)
            assert isinstance(result.error, Unavailable)
            assert "certificate of the vllm engine is not trusted" in result.error.message
            assert not engine.is_healthy()
        async with open_engine(
            f"vllm+https://127.0.0.1:{port}", model=("m",), engine_ca=TLS / "certificate.pem", engine_key="sk-secret"
        ) as engine:  # not the name in the certificate
            result = await run_generation(engine)
            assert isinstance(result.error, Unavailable)
            assert "is not valid for '127.0.0.1'" in result.error.message
        assert len(stub.heads) == request_count, "no request was sent to an untrusted server"


async def test_a_path_in_the_url_prefixes_the_paths_of_the_engine() -> None:
    paths: list[str] = []

    async def record_path(reader: Reader, writer: Writer) -> None:
        while True:
            paths.append((await read_request(reader)).split(b" ")[0].decode())
            writer.write(json_response(b'{"data":[{"id":"m"}]}'))

    async with serve_tcp(record_path) as port:
        for url in (f"vllm://127.0.0.1:{port}/team/v1", f"vllm://127.0.0.1:{port}/team", f"ovms://127.0.0.1:{port}"):
            async with open_engine(url) as engine:
                await run_generation(engine)
        async with open_engine(f"openai://127.0.0.1:{port}/api/v4") as engine:
            await run_generation(engine)
        async with open_engine(f"openai://127.0.0.1:{port}") as engine:
            await run_generation(engine)
    assert set(paths) >= {
        *("/team/v1/models", "/team/version", "/team/tokenize", "/team/v1/chat/completions"),
        *("/v3/models", "/v2", "/v3/chat/completions"),
        *("/api/v4/models", "/api/v4/chat/completions", "/v1/models", "/v1/chat/completions"),
    }
    assert {path.split("/")[1] for path in paths} == {"team", "v3", "v2", "api", "v1"}
