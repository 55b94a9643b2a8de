import asyncio
import signal
import socket
from collections.abc import Iterator

import pytest

from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.transport.process.server import Server, listen
from antiphon.transport.server.http_protocol import Connection
from antiphon.transport.server.settings import ServerSettings
from tests.transport.edge_process import SECONDS, Process, connected, process, request
from tests.transport.minimal_app import Edge, announce
from tests.transport.server.recording_transport import Socket, turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Process]:
    """With more grace than a test waits for its end: who does not stop at once fails it."""
    with process(shutdown_grace=2 * SECONDS) as one:
        yield one.started()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Process]:
    """For tests that let it live."""
    with process() as one:
        yield one.started()


def test_port_0_is_a_free_port(lasting: Process) -> None:
    assert lasting.port > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "203.0.113.7", "api_key": ("k",)}, "not an address of this machine"),
        ({"host": "no-such-host.invalid"}, "not known"),
        ({"host": "a" * 300}, "not known"),
        ({"host": "\u0000"}, "not known"),
    ],
)
@pytest.mark.shows("H.12")
def test_what_cannot_be_listened_on_is_said_in_a_sentence(settings: dict[str, str], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        listen(Config(**settings))  # type: ignore[arg-type]  # the table's types are wider than dict's


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.shows("H.12")
def test_beyond_loopback_no_server_starts_without_a_key(host: str) -> None:
    with process(host=host) as one:
        assert one.ended() == 1
        assert one.said().startswith(
            f"Listening on {host} would let others than this machine in; that needs an API key."
        )
        assert "--api-key" in one.said()


def test_a_port_in_use_is_said_in_a_sentence_without_a_traceback(lasting: Process) -> None:
    with process(port=lasting.port) as second:
        assert second.ended() == 1
        assert second.said() == (
            f"Port {lasting.port} on 127.0.0.1 is in use. Choose another with --port; 0 takes a free one.\n"
        )


def test_a_name_with_two_addresses_is_listened_on_at_one_port() -> None:
    sockets = listen(Config(host="localhost", port=0))
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


def test_nobody_is_let_wait_in_a_queue_before_the_engines_are_open() -> None:
    [one] = listen(Config(port=0))
    with one, pytest.raises(ConnectionRefusedError), socket.create_connection(one.getsockname(), timeout=30):
        pass


async def test_with_a_key_we_listen_beyond_loopback() -> None:
    with process(host="0.0.0.0", api_key=["k"]) as one:
        one.started()
        async with connected(one) as client:
            assert (await client.ask(request("/v1/models"))).status == 401
            assert (await client.ask(request("/v1/models", "Authorization: Bearer k"))).status == 200


def test_an_engine_that_does_not_open_is_told_of_in_its_sentence() -> None:
    with process(engine="broken") as one:
        assert one.ended() == 1
        assert one.said() == "closed\nThe engine is broken.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_still_opens_its_engines_can_be_stopped(number: signal.Signals) -> None:
    with process(engine="slow") as one:
        await one.says("opening")
        one.send(number)
        assert await asyncio.to_thread(one.ended) == 0
        assert one.said() == "opening\nclosed\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once_and_well(server: Process, number: signal.Signals) -> None:
    server.send(number)
    assert server.ended() == 0
    assert "Traceback" not in server.said()


async def test_a_connection_that_rests_does_not_hold_up_the_end(server: Process) -> None:
    async with connected(server) as client, connected(server):
        assert (await client.ask(request())).status == 200
        server.send(signal.SIGTERM)
        assert await asyncio.to_thread(server.ended) == 0


@pytest.mark.shows("H.10", "H.19")
async def test_a_draining_server_refuses_new_work_and_lets_the_old_end(server: Process) -> None:
    async with connected(server) as working, connected(server) as other:
        body = (
            b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n"
        )
        await working.send(body)
        assert (await other.ask(request("/ready"))).status == 200
        server.send(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            while (await other.ask(request("/ready"))).status == 200:
                pass
        refused = await other.ask(request("/v1/echo", method="POST", body=b"1"))
        assert refused.status == 503
        assert refused.error["code"] == "service_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        async with connected(server) as late:  # still there to say so
            assert (await late.ask(request("/ready"))).status == 503
            assert (await late.ask(request("/health"))).status == 200
        assert (await working.ask(b"[1]")).body == b"[1]"
    assert await asyncio.to_thread(server.ended) == 0
    assert "Traceback" not in server.said()


@pytest.mark.shows("H.10")
async def test_when_the_grace_is_over_work_is_interrupted_and_has_its_last_words() -> None:
    with process(shutdown_grace=0.3) as one:
        one.started()
        async with connected(one) as client:
            await client.send(request("/v1/hang"))
            await client.reader.readuntil(b"hello \r\n")
            one.send(signal.SIGTERM)
            assert b"interrupted\r\n0\r\n\r\n" in await client.hung_up()
        assert await asyncio.to_thread(one.ended) == 0
        assert "Traceback" not in one.said()


async def test_work_that_does_not_heed_the_interruption_is_cut_off() -> None:
    with process(shutdown_grace=0.1) as one:
        one.started()
        async with connected(one) as client:
            await client.send(request("/v1/flood"))
            await client.reader.readuntil(b"xxx")
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # there is no other way to not read
            one.send(signal.SIGTERM)
            assert await asyncio.to_thread(one.ended) == 0
        assert "Traceback" not in one.said()


async def test_a_hangup_reads_the_settings_again_and_stops_nothing(server: Process) -> None:
    server.send(signal.SIGHUP)
    await server.says("reloaded")
    async with connected(server) as client:
        assert (await client.ask(request("/ready"))).status == 200
    server.send(signal.SIGHUP)
    await server.says("reloaded\nreloaded")


async def test_a_server_that_still_opens_its_engines_has_nothing_to_read_again() -> None:
    with process(engine="slow") as one:
        await one.says("opening")
        one.send(signal.SIGHUP)
        one.send(signal.SIGTERM)
        assert await asyncio.to_thread(one.ended) == 0
        assert one.said() == "opening\nclosed\n"


async def test_a_second_interrupt_does_not_wait(server: Process) -> None:
    async with connected(server) as client:
        await client.send(request("/v1/hang"))
        await client.reader.readuntil(b"hello \r\n")
        server.send(signal.SIGINT)
        async with connected(server) as other:
            while (await other.ask(request("/ready"))).status == 200:
                pass
        server.send(signal.SIGINT)
        assert await asyncio.to_thread(server.ended) == 0


def test_an_idle_server_is_small(lasting: Process) -> None:
    """The edge alone; the whole server is measured by `make bench`."""
    assert lasting.resident() < 50 * 1024 * 1024


@pytest.mark.parametrize(
    ("looks", "status"),
    [([float(second) for second in range(13)], b"408"), ([0.0, 1.0, 30.0], b"200")],
    ids=["the client took its time", "the server stood still"],
)
async def test_time_in_which_the_server_stood_still_is_not_held_against_clients(
    looks: list[float], status: bytes
) -> None:
    """What they sent meanwhile was not read yet."""
    config, carrier, began = Config(), Socket(), asyncio.get_running_loop().time()
    server = Server(Edge(config).app, config, announce)
    assert isinstance(server.config, ServerSettings)
    connection = Connection(server.config, server.server_state, {})
    connection.connection_made(carrier)  # type: ignore[arg-type]  # as much of one as is needed
    head, rest = request("/health")[:20], request("/health")[20:]
    server._look(began)
    connection.data_received(head)
    for passed in looks:
        server._look(began + passed)
    connection.data_received(rest)
    async with asyncio.timeout(SECONDS):
        while not carrier.writes:
            await turn()
    assert carrier.writes[0].startswith(b"HTTP/1.1 " + status)
