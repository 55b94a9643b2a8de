"""Engines that are named by a web address, or found on this machine."""

import asyncio
from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.discovery import find_local_engines, identify_engine, identify_engines
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError
from tests.engines.http.stubs.chat_stub import run_stub
from tests.support.local_servers import serve_tcp
from tests.support.server_process import run_server
from tests.support.services import free_port

pytestmark = pytest.mark.anyio
REMOTE = sorted({*ENGINES} - {"fake", "llamacpp", "openvino"})


def to_address(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


@pytest.mark.parametrize("path", ["", "/", "/v1"])
@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.shows("I3.1")
async def test_every_kind_of_engine_is_identified(kind: str, path: str) -> None:
    async with run_stub(kind) as stub:
        address = to_address(stub.url)
        found = await identify_engine(f"http://{address}{path}")
    assert found.url == (f"openai://{address}/v1" if kind == "openai" else f"{kind}://{address}")


async def test_the_kind_replaces_the_scheme_in_flags_and_tables() -> None:
    async with run_stub("vllm") as stub:
        address = to_address(stub.url)
        flags = Config.from_settings(engine=(f"http://{address}", "fake"))
        tables = Config.from_settings(engines=(EngineSpec(url=f"http://{address}", name="one", slots=3),))
        identified = [await asyncio.to_thread(identify_engines, config) for config in (flags, tables)]
    assert [spec.url for spec in identified[0].inference.specs] == [f"vllm://{address}", "fake"]
    assert [(spec.url, spec.name, spec.slots) for spec in identified[1].inference.specs] == [
        (f"vllm://{address}", "one", 3)
    ]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_address_that_does_not_answer_is_refused_with_a_hint(scheme: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(StartupError, match=f"refused.*such as vllm://{address} or openai://{address}/v1"):
        await identify_engine(f"{scheme}://{address}")


async def test_a_server_without_the_api_is_refused() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async with serve_tcp(reply) as port:
        with pytest.raises(StartupError, match="lists models"):
            await identify_engine(f"http://127.0.0.1:{port}")


async def test_local_engines_are_found_but_no_other_antiphon() -> None:
    async with run_stub("ollama") as stub:
        address = to_address(stub.url)
        with run_server("--engine", "fake") as own:
            ports = [free_port(), own.port, int(address.rpartition(":")[2])]
            found = await asyncio.to_thread(find_local_engines, ports)
    assert [(engine.url, engine.models) for engine in found] == [(f"ollama://{address}", ("m",))]


@pytest.mark.parametrize("other", [{"engine": "fake"}, {"model": ("a.gguf",)}])
def test_discover_is_not_combined_with_engines(other: dict[str, object]) -> None:
    with pytest.raises(StartupError, match="leave out --engine"):
        identify_engines(Config.from_settings(discover=True, **other))


@pytest.mark.shows("I3.2")
async def test_discover_serves_the_engines_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_stub("sglang") as stub:
        address = to_address(stub.url)
        monkeypatch.setattr("antiphon.engines.discovery.USUAL_PORTS", (int(address.rpartition(":")[2]), free_port()))
        config = await asyncio.to_thread(identify_engines, Config.from_settings(discover=True))
    assert [spec.url for spec in config.inference.specs] == [f"sglang://{address}"]


def test_discover_without_an_engine_leaves_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("antiphon.engines.discovery.USUAL_PORTS", (free_port(),))
    config = identify_engines(Config.from_settings(discover=True))
    assert [spec.url for spec in config.inference.specs] == ["llamacpp"]
    assert "found no engine" in caplog.text


async def test_a_plain_start_suggests_the_engines_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with run_stub("vllm") as stub:
        address = to_address(stub.url)
        monkeypatch.setattr("antiphon.engines.discovery.USUAL_PORTS", (int(address.rpartition(":")[2]),))
        config = await asyncio.to_thread(identify_engines, Config())
    assert [spec.url for spec in config.inference.specs] == ["llamacpp"]
    assert f"to use it: --engine vllm://{address}" in caplog.text


async def test_a_server_with_a_web_address_as_its_engine_serves_its_models(tmp_path: Path) -> None:
    async with run_stub("vllm") as stub:
        address = to_address(stub.url)

        def ask() -> tuple[int, bytes, str]:
            with run_server("--engine", f"http://{address}", "--store", str(tmp_path / "s.db")) as server:
                status, body = server.post({"model": "m", "input": "hi"})
                return status, body, server.read_output().decode()

        status, body, output = await asyncio.to_thread(ask)
    assert status == 200, body
    assert f"the engine at {address} is used as vllm://{address}" in output
