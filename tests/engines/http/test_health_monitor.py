"""What an engine is asked about itself, when it is there, when it is not, and when it comes back."""

import asyncio
import logging
import ssl

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.http import health_monitor
from antiphon.engines.http.base import HttpEngine
from antiphon.errors import ModelNotFound, StartupError, Unavailable
from antiphon.wiring import build_engine
from tests.engines.http.stubs.chat_stub import DIALECTS, Stub, standing_in, tcp
from tests.engines.http.stubs.generation import ask, opened, post, server
from tests.engines.unix_server import Reader, Writer, answer, request
from tests.support.asgi_client import call
from tests.support.local_servers import held_port
from tests.support.paths import TLS

pytestmark = pytest.mark.anyio


async def until(engine: Engine, well: bool) -> None:
    async with asyncio.timeout(30):
        while True:
            if engine.healthy() is well:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.21")
async def test_an_engine_is_asked_what_it_is_and_has(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url) as engine:
        assert [model.id for model in engine.models()] == ["m"]
        assert engine.serves("m")
        assert not engine.serves("n")
        able = await engine.capabilities("m")
        version = {"vllm": "0.32.0", "sglang": "0.5.9", "ovms": "2026.3", "llamacpp-server": "b9000-abc"}
        assert able.version == {**version, "ollama": "0.40.12", "openai": None}[name]
        assert able.context == (32768 if name in ("vllm", "sglang", "llamacpp-server") else None)
        assert able.slots == (2 if name == "llamacpp-server" else None)
        assert able.counts is (name in ("vllm", "sglang", "llamacpp-server"))
        assert able.prompt == "chat"


async def test_an_engine_that_tells_less_is_an_engine() -> None:
    """Nothing but a list of names; and not even that, if the operator names the models."""

    async def bare(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            models = asked.startswith(b"/v1/models") and listed
            writer.write(answer(b'{"data":[{"id":"x"}]}') if models else answer(b"no", "404 Not Found"))

    for name in DIALECTS:
        listed = name != "ovms"
        async with tcp(bare) as port, opened(f"{name}://127.0.0.1:{port}", model=("x",)) as engine:
            assert [model.id for model in engine.models()] == ["x"]
            able = await engine.capabilities("x")
            assert (able.version, able.context, able.counts) == (None, None, False)


async def test_only_the_models_that_the_operator_names_are_served() -> None:
    async with standing_in("vllm") as stub, opened(stub.url, model=("other",)) as engine:
        assert [model.id for model in engine.models()] == ["other"]


async def test_a_model_that_the_operator_names_and_the_engine_does_not_list_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with standing_in("vllm") as stub, opened(stub.url, model=("mistyped",)) as engine:
        assert isinstance(engine, HttpEngine)
        await engine.probe()
        await engine.probe()
    said = [record.getMessage() for record in caplog.records if "mistyped" in record.getMessage()]
    assert said[0] == "The vllm engine does not list what it is to serve: mistyped"
    assert len([line for line in said if "does not list" in line]) == 1


async def test_what_a_model_of_ollama_cannot_do_is_not_honoured() -> None:
    ollama = DIALECTS["ollama"]
    stub = Stub(replace(ollama, asides={**ollama.asides, "/api/show": {"capabilities": ["completion"]}}))
    async with tcp(stub.serve) as port, server(f"ollama://127.0.0.1:{port}") as app:
        for asked in ({"reasoning": {"effort": "high"}}, {"tools": [{"type": "function", "name": "f"}]}):
            told = await post(app, **asked)
            assert told.status == 400
            assert "ollama" in told.error["message"]


@pytest.mark.shows("C.21", "C.28")
async def test_an_engine_that_is_down_at_the_start_is_found_when_it_comes() -> None:
    with held_port() as port:
        await _found_when_it_comes(port)


async def _found_when_it_comes(port: int) -> None:
    async with server(f"vllm://127.0.0.1:{port}") as app:
        assert (await call(app, "GET", "/ready")).status == 503
        told = await post(app)
        assert told.status == 503
        assert told.error["code"] == "service_unavailable"
        assert told.header(b"retry-after")
        async with tcp(Stub(DIALECTS["vllm"]).serve, port, reuse_port=True):
            async with asyncio.timeout(30):
                while True:
                    if (await call(app, "GET", "/ready")).status == 200:
                        break
                    await asyncio.sleep(0)
            assert (await post(app)).json()["status"] == "completed"


@pytest.mark.shows("C.21", "C.28")
async def test_an_engine_that_went_away_is_noticed_and_asked_anew_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with held_port() as port:
        await _went_away_and_came_back(port)
    told = [record.getMessage() for record in caplog.records if record.name == health_monitor.__name__]
    assert [line.split(" at ")[1].split(" ", 1)[1].split(" (")[0].split(",")[0].split(";")[0] for line in told] == [
        "is there",
        "is not there",
        "is there",
    ]


async def _went_away_and_came_back(port: int) -> None:
    async with tcp(Stub(DIALECTS["vllm"]).serve, port, reuse_port=True):
        engine = build_engine(Config(engine=f"vllm://127.0.0.1:{port}"))
        await engine.open()
        assert (await ask(engine)).error is None
    try:
        gone = await ask(engine)
        assert isinstance(gone.error, Unavailable)
        await until(engine, False)
        assert engine.serves("m"), "what is known of it stays known"
        other = Stub(DIALECTS["sglang"])
        async with tcp(other.serve, port, reuse_port=True):
            await until(engine, True)
            assert (await engine.capabilities("m")).version is None
            assert (await ask(engine)).error is None
    finally:
        await engine.close()


async def test_what_an_engine_said_stands_until_it_says_something_else() -> None:
    said, asked = ["1", "1", "2"], asyncio.Event()

    async def probe() -> health_monitor.Probe:
        asked.set()
        return health_monitor.Probe(version=said.pop(0))

    async def look() -> None:
        asked.clear()
        eye.suspect()
        async with asyncio.timeout(30):
            await asked.wait()
        await asyncio.sleep(0)

    eye = health_monitor.Watch("It", "here", probe)
    await eye.start()
    standing = eye.standing
    await look()
    assert standing.stands
    assert eye.standing is standing
    await look()
    assert not standing.stands
    assert eye.standing.stands
    await eye.stop()


async def test_aliases_and_unknown_names_wait_for_an_engine_that_was_never_there() -> None:
    async with tcp(Stub(DIALECTS["vllm"]).serve) as port:
        pass
    async with server(f"vllm://127.0.0.1:{port}", served_model_name=("alias",)) as app:
        assert (await post(app, model="alias")).status == 503
        assert (await post(app, model="else")).status == 503
    async with standing_in("vllm") as stub, server(stub.url) as app:
        told = await post(app, model="else")
        assert (told.status, told.error["code"]) == (ModelNotFound.status, ModelNotFound.code)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_key_that_is_not_accepted_stops_the_start(status: str) -> None:
    async def locked(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            writer.write(answer(b'{"error":"sk-wrong is unknown"}', status))

    async with tcp(locked) as port:
        with pytest.raises(StartupError, match=r"does not accept the key .*ANTIPHON_ENGINE_KEY") as caught:
            async with opened(f"vllm://127.0.0.1:{port}", engine_key="sk-wrong"):
                pass
        assert "sk-wrong" not in str(caught.value)


def heads(stub: Stub) -> list[str]:
    return [line for head in stub.heads for line in head.split("\r\n") if line.lower().startswith("authorization")]


async def test_the_key_is_in_every_request_and_in_nothing_that_is_printed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with standing_in("vllm") as stub:
        async with opened(stub.url, engine_key="sk-secret") as engine:
            assert (await ask(engine)).error is None
            assert "sk-secret" not in repr(vars(engine)["settings"]) + repr(engine)
        assert heads(stub) == ["Authorization: Bearer sk-secret"] * len(stub.heads)
        assert all(f"Host: {stub.url.removeprefix('vllm://')}\r\n" in head for head in stub.heads)
        assert "sk-secret" not in caplog.text
    async with standing_in("vllm") as stub, opened(stub.url) as engine:
        assert not heads(stub)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_key_goes_nowhere(status: int) -> None:
    canary: list[bytes] = []

    async def listen(reader: Reader, writer: Writer) -> None:
        canary.append(await reader.read(1))

    async def lead_away(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            if asked.startswith(b"/v1/models"):
                writer.write(answer(b'{"data":[{"id":"m"}]}'))
            else:
                where = f"\r\nLocation: http://127.0.0.1:{elsewhere}/\r\n\r\n".encode()
                writer.write(answer(b"", f"{status} Found").replace(b"\r\n\r\n", where, 1))

    async with (
        tcp(listen) as elsewhere,
        tcp(lead_away) as port,
        opened(f"vllm://127.0.0.1:{port}", engine_key="sk-secret") as engine,
    ):
        said = await ask(engine)
        assert said.error is not None
        assert "redirect" in said.error.message
    assert not canary


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return made


async def test_tls_is_spoken_with_those_whose_certificate_is_trusted() -> None:
    stub = Stub(DIALECTS["vllm"])
    async with tcp(stub.serve, ssl=context()) as port:
        url = f"vllm+https://localhost:{port}"
        async with opened(url, engine_ca=TLS / "certificate.pem", engine_key="sk-secret") as engine:
            assert (await ask(engine)).text == "You said: hi"
        seen = len(stub.heads)
        async with opened(url, model=("m",), engine_key="sk-secret") as engine:  # the system does not know it
            said = await ask(engine)
            assert isinstance(said.error, Unavailable)
            assert "certificate of the vllm engine is not trusted" in said.error.message
            assert not engine.healthy()
        async with opened(
            f"vllm+https://127.0.0.1:{port}", model=("m",), engine_ca=TLS / "certificate.pem", engine_key="sk-secret"
        ) as engine:  # another name than the certificate's
            said = await ask(engine)
            assert isinstance(said.error, Unavailable)
            assert "is not valid for '127.0.0.1'" in said.error.message
        assert len(stub.heads) == seen, "no request was sent to whom is not trusted"


async def test_a_path_in_the_url_stands_before_those_of_the_engine() -> None:
    paths: list[str] = []

    async def note(reader: Reader, writer: Writer) -> None:
        while True:
            paths.append((await request(reader)).split(b" ")[0].decode())
            writer.write(answer(b'{"data":[{"id":"m"}]}'))

    async with tcp(note) as port:
        for url in (f"vllm://127.0.0.1:{port}/team/v1", f"vllm://127.0.0.1:{port}/team", f"ovms://127.0.0.1:{port}"):
            async with opened(url) as engine:
                await ask(engine)
        async with opened(f"openai://127.0.0.1:{port}/api/v4") as engine:
            await ask(engine)
        async with opened(f"openai://127.0.0.1:{port}") as engine:
            await ask(engine)
    assert set(paths) >= {
        *("/team/v1/models", "/team/version", "/team/tokenize", "/team/v1/chat/completions"),
        *("/v3/models", "/v2", "/v3/chat/completions"),
        *("/api/v4/models", "/api/v4/chat/completions", "/v1/models", "/v1/chat/completions"),
    }
    assert {path.split("/")[1] for path in paths} == {"team", "v3", "v2", "api", "v1"}
