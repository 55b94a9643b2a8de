"""The server process: listening, startup errors, signals and shutdown.

Covers `http_server/settings.py`.
"""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from antiphon.config import Config
from antiphon.http_server.http_protocol import HttpProtocol
from antiphon.transport.process.server import ApplicationServer
from tests.http_server.recording_transport import RecordingHttpTransport, run_loop_once
from tests.transport.edge_process import DEADLINE_SECONDS, ServerProcess, connect, make_request, run_server
from tests.transport.minimal_app import MinimalApp, announce

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server whose grace period is longer than a test waits for its exit: one that does not stop at once fails the
    test.
    """
    with run_server(shutdown_grace=2 * DEADLINE_SECONDS) as one:
        yield one.wait_started()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ServerProcess]:
    """A server for tests that do not stop it."""
    with run_server() as one:
        yield one.wait_started()


def test_port_0_is_a_free_port(shared_server: ServerProcess) -> None:
    assert shared_server.port > 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.shows("H.12")
def test_beyond_loopback_no_server_starts_without_a_key(host: str) -> None:
    with run_server(host=host) as one:
        assert one.wait_exit() == 1
        assert one.read_stderr().startswith(
            f"Listening on {host} exposes the server to other machines, which requires an API key."
        )
        assert "--api-key" in one.read_stderr()


def test_a_port_in_use_is_reported_without_a_traceback(shared_server: ServerProcess) -> None:
    with run_server(port=shared_server.port) as second:
        assert second.wait_exit() == 1
        assert second.read_stderr() == (
            f"Port {shared_server.port} on 127.0.0.1 is in use. Choose another with --port; 0 takes a free one.\n"
        )


async def test_a_server_with_a_key_listens_beyond_loopback() -> None:
    with run_server(host="0.0.0.0", api_key=["k"]) as one:
        one.wait_started()
        async with connect(one) as client:
            assert (await client.fetch(make_request("/v1/models"))).status == 401
            assert (await client.fetch(make_request("/v1/models", "Authorization: Bearer k"))).status == 200


def test_an_engine_that_fails_to_open_is_reported_with_its_message() -> None:
    with run_server(engine="broken") as one:
        assert one.wait_exit() == 1
        assert one.read_stderr() == "closed\nThe engine is broken.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_can_be_stopped_while_it_opens_its_engines(number: signal.Signals) -> None:
    with run_server(engine="slow") as one:
        await one.wait_for_stderr("opening")
        one.send_signal(number)
        assert await asyncio.to_thread(one.wait_exit) == 0
        assert one.read_stderr() == "opening\nclosed\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once_with_exit_code_0(server: ServerProcess, number: signal.Signals) -> None:
    server.send_signal(number)
    assert server.wait_exit() == 0
    assert "Traceback" not in server.read_stderr()


async def test_idle_connections_do_not_delay_the_shutdown(server: ServerProcess) -> None:
    async with connect(server) as client, connect(server):
        assert (await client.fetch(make_request())).status == 200
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait_exit) == 0


@pytest.mark.shows("H.10", "H.19")
async def test_a_draining_server_rejects_new_work_and_finishes_running_work(server: ServerProcess) -> None:
    async with connect(server) as working, connect(server) as other:
        body = (
            b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n"
        )
        await working.send(body)
        assert (await other.fetch(make_request("/ready"))).status == 200
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await other.fetch(make_request("/ready"))).status == 200:
                pass
        refused = await other.fetch(make_request("/v1/echo", method="POST", body=b"1"))
        assert refused.status == 503
        assert refused.error["code"] == "service_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        async with connect(server) as late:  # the server still accepts connections, to report its state
            assert (await late.fetch(make_request("/ready"))).status == 503
            assert (await late.fetch(make_request("/health"))).status == 200
        assert (await working.fetch(b"[1]")).body == b"[1]"
    assert await asyncio.to_thread(server.wait_exit) == 0
    assert "Traceback" not in server.read_stderr()


@pytest.mark.shows("H.10")
async def test_work_is_interrupted_after_the_grace_period_and_can_end_its_reply() -> None:
    with run_server(shutdown_grace=0.3) as one:
        one.wait_started()
        async with connect(one) as client:
            await client.send(make_request("/v1/hang"))
            await client.reader.readuntil(b"hello \r\n")
            one.send_signal(signal.SIGTERM)
            assert b"interrupted\r\n0\r\n\r\n" in await client.read_until_closed()
        assert await asyncio.to_thread(one.wait_exit) == 0
        assert "Traceback" not in one.read_stderr()


async def test_work_that_ignores_the_interruption_is_cut_off() -> None:
    with run_server(shutdown_grace=0.1) as one:
        one.wait_started()
        async with connect(one) as client:
            await client.send(make_request("/v1/flood"))
            await client.reader.readuntil(b"xxx")
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the client stops reading
            one.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(one.wait_exit) == 0
        assert "Traceback" not in one.read_stderr()


async def test_a_sighup_reloads_the_settings_and_stops_nothing(server: ServerProcess) -> None:
    server.send_signal(signal.SIGHUP)
    await server.wait_for_stderr("reloaded")
    async with connect(server) as client:
        assert (await client.fetch(make_request("/ready"))).status == 200
    server.send_signal(signal.SIGHUP)
    await server.wait_for_stderr("reloaded\nreloaded")


async def test_a_sighup_is_ignored_while_the_server_opens_its_engines() -> None:
    with run_server(engine="slow") as one:
        await one.wait_for_stderr("opening")
        one.send_signal(signal.SIGHUP)
        one.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(one.wait_exit) == 0
        assert one.read_stderr() == "opening\nclosed\n"


async def test_a_second_sigint_stops_the_server_at_once(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(make_request("/v1/hang"))
        await client.reader.readuntil(b"hello \r\n")
        server.send_signal(signal.SIGINT)
        async with connect(server) as other:
            while (await other.fetch(make_request("/ready"))).status == 200:
                pass
        server.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.wait_exit) == 0


def test_an_idle_server_uses_little_memory(shared_server: ServerProcess) -> None:
    """The minimal application alone; `make bench` measures the complete server."""
    assert shared_server.read_resident_bytes() < 56 * 1024 * 1024  # 51 with Python 3.14


@pytest.mark.parametrize(
    ("checks", "status"),
    [([float(second) for second in range(13)], b"408"), ([0.0, 1.0, 30.0], b"200")],
    ids=["slow client", "blocked server"],
)
async def test_timeouts_exclude_the_time_in_which_the_server_was_blocked(checks: list[float], status: bytes) -> None:
    """Data that clients sent in that time has not been read yet."""
    config, transport, began = Config(), RecordingHttpTransport(), asyncio.get_running_loop().time()
    server = ApplicationServer(MinimalApp(config).app, config, announce)
    connection = HttpProtocol(server.settings, server.server_state, {})
    connection.connection_made(transport)  # type: ignore[arg-type]  # has only the methods that are called
    head, tail = make_request("/health")[:20], make_request("/health")[20:]
    server.check_connections(began)
    connection.data_received(head)
    for elapsed in checks:
        server.check_connections(began + elapsed)
    connection.data_received(tail)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not transport.writes:
            await run_loop_once()
    assert transport.writes[0].startswith(b"HTTP/1.1 " + status)
