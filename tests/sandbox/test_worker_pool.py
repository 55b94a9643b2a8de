"""Sandbox workers as servers elsewhere use them: real worker processes on loopback, and how connections are refused.

Covers `sandbox/worker_pool.py`, `sandbox/remote.py`, `sandbox/gateway.py`, `sandbox/upgrade.py`, `sandbox/factory.py`,
`cli/sandbox_worker.py`.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.sources import load
from antiphon.errors import Busy, SandboxUnavailable, StartupError, UnknownContainer
from antiphon.sandbox.factory import make_sandbox
from antiphon.sandbox.gateway import SandboxGateway
from antiphon.sandbox.local import LocalSandbox
from antiphon.sandbox.worker_pool import WorkerPool
from tests.cli.process import run_antiphon
from tests.support.local_servers import Reader, Writer, serve_tcp
from tests.support.paths import TLS
from tests.support.sandboxes import (
    LIMITS,
    WORKER_KEY,
    WorkerProcess,
    find_processes,
    make_pool,
    run_code,
    run_sandbox,
    run_worker,
)

pytestmark = pytest.mark.anyio

OTHER_KEY = "other" * 5


@contextmanager
def start_worker(*flags: str) -> Iterator[WorkerProcess]:
    with run_worker(*flags, keys=(WORKER_KEY, OTHER_KEY)) as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox on this machine: {found}")
        yield found


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with start_worker() as found:
        yield found


@asynccontextmanager
async def open_pool(*urls: str, key: str = WORKER_KEY) -> AsyncIterator[WorkerPool]:
    pool = make_pool(*urls, key=key)
    try:
        yield pool
    finally:
        await pool.close()


class Relay:
    """A network between a server and a worker that can be cut."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._writers: list[Writer] = []

    async def handle(self, reader: Reader, writer: Writer) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_servers_with_other_keys_have_other_containers(worker: WorkerProcess) -> None:
    async with open_pool(worker.url) as pool, open_pool(worker.url, key=OTHER_KEY) as other:
        await pool.start("same", LIMITS)
        await run_code(pool, "x = 'mine'", container="same")
        with pytest.raises(UnknownContainer):
            await run_code(other, "x", container="same")
        assert (await other.status()).containers == ()
        await other.start("same", LIMITS)
        assert "NameError" in (await run_code(other, "x", container="same")).stderr
        await other.stop("same")
        assert (await run_code(pool, "x", container="same")).stdout == "'mine'\n"
        assert pool.name != other.name
        await pool.stop("same")


async def test_a_container_survives_a_lost_connection(worker: WorkerProcess) -> None:
    relay = Relay(worker.url)
    async with serve_tcp(relay.handle) as port, open_pool(f"http://127.0.0.1:{port}") as pool:
        await pool.start("c", LIMITS)
        await run_code(pool, "x = 5")
        relay.cut()
        await _until_answered(pool)
        assert (await run_code(pool, "x")).stdout == "5\n"

        events = pool.run("c", "print('begun')\nimport time\ntime.sleep(60)", 60)
        await anext(events)
        relay.cut()
        with pytest.raises(SandboxUnavailable, match="--sandbox-url"):
            await anext(events)
        await _until_answered(pool)
        assert (await run_code(pool, "1")).result.restarted  # the call that was running was killed
        await pool.stop("c")


async def _until_answered(pool: WorkerPool) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await pool.status()
                return
            except SandboxUnavailable:
                await asyncio.to_thread(os.sched_yield)


async def test_containers_of_a_server_that_has_gone_are_stopped_after_the_grace() -> None:
    with start_worker("--grace", "0") as worker:
        async with open_pool(worker.url, key=OTHER_KEY) as other:
            await other.start("kept", LIMITS)
            before = find_processes(worker.folder)
            async with open_pool(worker.url) as pool:
                await pool.start("c", LIMITS)
            async with asyncio.timeout(30):
                while {*find_processes(worker.folder)} - {*before}:
                    await asyncio.to_thread(os.sched_yield)
            assert (await run_code(other, "1 + 1", container="kept")).stdout == "2\n"


async def test_a_worker_that_is_stopped_leaves_no_process() -> None:
    with start_worker() as worker:
        async with open_pool(worker.url) as pool:
            await pool.start("c", LIMITS)
            worker.process.terminate()
            assert await asyncio.to_thread(worker.process.wait, 30) == 0
            assert find_processes(worker.folder) == []
            with pytest.raises(SandboxUnavailable, match="--sandbox-url"):
                await run_code(pool, "1")


async def test_a_sandbox_process_that_dies_is_started_again_without_its_containers() -> None:
    with start_worker() as worker:
        async with open_pool(worker.url) as pool:
            await pool.start("c", LIMITS)
            os.kill(find_processes(worker.folder)[1], signal.SIGKILL)  # the first one is the worker
            await _until_answered(pool)
            with pytest.raises(UnknownContainer):
                await run_code(pool, "1")
            await pool.start("c", LIMITS)


async def test_containers_are_spread_over_workers_and_every_server_finds_them() -> None:
    with start_worker("--sandbox-max-containers", "2") as one, start_worker("--sandbox-max-containers", "2") as two:
        async with open_pool(one.url, two.url) as pool, open_pool(two.url, one.url) as other:
            names = [f"c{number}" for number in range(4)]
            for name in names:  # the order of some begins with a worker that is full by then
                await pool.start(name, LIMITS)
            with pytest.raises(Busy):
                await pool.start("c4", LIMITS)
            assert (await pool.status()).containers == (*names,)
            for name in names:
                await run_code(pool, f"x = {name!r}", container=name)
                assert (await run_code(other, "x", container=name)).stdout == f"'{name}'\n"
            with pytest.raises(UnknownContainer):
                await other.list_files("c4")

            one.process.kill()
            one.process.wait(30)
            answered = await asyncio.gather(*(_is_answered(other, name) for name in (*names, "c4")))
            assert answered == [*answered[:4], False]
            assert sum(answered) == 2  # the others are not lost: their worker does not answer
            with pytest.raises(SandboxUnavailable):
                await other.status()
            await other.stop(names[answered.index(True)])
            await other.start("c5", LIMITS)


async def _is_answered(pool: WorkerPool, name: str) -> bool:
    """Whether a container answers; otherwise its worker is unavailable."""
    try:
        await pool.list_files(name)
        return True
    except SandboxUnavailable:
        return False


async def test_every_address_of_a_name_is_a_worker(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(worker.url.rpartition(":")[2])
    system = socket.getaddrinfo
    found: list[tuple[int, str]] = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "workers.test":
            return system(host, *arguments, **options)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in found]

    monkeypatch.setattr("antiphon.sandbox.worker_pool._REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with open_pool(f"http://workers.test:{port}") as pool:
        assert (await pool.status()).containers == ()  # of one family
        found.append((socket.AF_INET, "127.0.0.2"))
        with pytest.raises(SandboxUnavailable, match=r"127\.0\.0\.2 .*workers\.test"):
            await pool.status()
        await pool.start("c", LIMITS)
        del found[-1]
        assert (await pool.status()).containers == ("c",)
        found.clear()
        assert (await pool.status()).containers == ("c",)  # a failed lookup changes nothing
        await pool.stop("c")
    async with open_pool(f"http://workers.test:{port}") as pool:
        with pytest.raises(SandboxUnavailable, match=r"no address: .*--sandbox-url http://workers\.test"):
            await pool.start("c", LIMITS)


async def test_a_worker_with_a_certificate_is_trusted_by_the_authorities_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start_worker("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem")) as worker:
        url = worker.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        async with open_pool(url) as pool:
            with pytest.raises(SandboxUnavailable, match=r"certificate that is not trusted: .* \(--sandbox-url"):
                await pool.status()
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
        async with open_pool(url) as pool:
            await pool.start("c", LIMITS)
            assert (await run_code(pool, "1 + 1")).stdout == "2\n"
        async with open_pool(url.replace("https", "http")) as pool:
            with pytest.raises(SandboxUnavailable, match="cannot be reached"):
                await pool.status()


async def test_an_unknown_key_is_refused_and_not_repeated(worker: WorkerProcess) -> None:
    async with open_pool(worker.url, key="wrong" * 5) as pool:
        with pytest.raises(SandboxUnavailable, match="--sandbox-key-file") as caught:
            await pool.start("c", LIMITS)
        assert "wrong" not in str(caught.value)
        assert "wrong" not in repr(pool)


async def test_a_worker_of_another_level_is_refused(worker: WorkerProcess) -> None:
    async with open_pool(worker.url) as pool:
        level = (await pool.status()).level
        other = "landlock" if level == "namespaces" else "namespaces"
    settings = {"sandbox_url": (worker.url,), "sandbox_key_file": worker.folder / "keys"}
    sandbox = make_sandbox(Config.from_settings(sandbox=other, **settings))
    with pytest.raises(SandboxUnavailable, match=f"{level} instead of {other}"):
        await sandbox.status()
    await sandbox.close()
    assert isinstance(make_sandbox(Config.from_settings(sandbox="none", **settings)), LocalSandbox)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nNo room.\n", "refuses the connection: 503 No room"),
        (b"hello\r\n\r\n", "not HTTP"),
        (b"", "not complete"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"\xff" * 8, "has ended the connection"),
    ],
)
async def test_an_answer_that_is_no_worker_s_is_an_error(answer: bytes, message: str) -> None:
    async def respond(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with serve_tcp(respond) as port, open_pool(f"http://127.0.0.1:{port}") as pool:
        with pytest.raises(SandboxUnavailable, match=rf"{message}.*\(--sandbox-url"):
            await pool.start("c", LIMITS)


async def test_a_worker_that_does_not_answer_is_an_error_within_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(reader: Reader, writer: Writer) -> None:
        await reader.read()

    monkeypatch.setattr("antiphon.sandbox.remote._CONNECT_SECONDS", 0.1)
    async with serve_tcp(wait) as port, open_pool(f"http://127.0.0.1:{port}") as pool:
        with pytest.raises(SandboxUnavailable, match=r"did not answer within 0\.1 s \(--sandbox-url"):
            await pool.start("c", LIMITS)
        with pytest.raises(SandboxUnavailable, match="cannot be reached"):  # at once, without another attempt
            await pool.start("c", LIMITS)


@asynccontextmanager
async def open_gateway() -> AsyncIterator[int]:
    """A gateway in this process, in front of a sandbox that cannot be started."""
    async with run_sandbox("none") as sandbox:
        gateway = SandboxGateway(sandbox, [WORKER_KEY], 0.0)
        async with serve_tcp(gateway.accept) as port:
            yield port


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


UPGRADE = b"Connection: keep-alive, Upgrade\r\nUpgrade: antiphon-sandbox/1\r\n"
KEY = b"Authorization: Bearer " + WORKER_KEY.encode() + b"\r\n"


@pytest.mark.parametrize(
    ("request_head", "answer"),
    [
        (b"GET /health HTTP/1.1\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /ready HTTP/1.1\r\n", b"HTTP/1.1 503 Service Unavailable"),
        (b"GET /other HTTP/1.1\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /sandbox HTTP/1.1\r\n" + UPGRADE, b"HTTP/1.1 401 Unauthorized"),
        (b"GET /sandbox HTTP/1.1\r\nAuthorization: Basic eDp5\r\n" + UPGRADE, b"HTTP/1.1 401 Unauthorized"),
        (b"GET /sandbox HTTP/1.1\r\n" + UPGRADE + KEY[:-4] + b"\xff\r\n", b"HTTP/1.1 401 Unauthorized"),
        (b"GET /sandbox HTTP/1.1\r\n" + KEY, b"HTTP/1.1 426 Upgrade Required"),
        (b"GET /sandbox HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + KEY, b"HTTP/1.1 426"),
        (b"GET /sandbox HTTP/1.1\r\n" + UPGRADE + KEY, b"HTTP/1.1 503 Service Unavailable"),
        (b"hello\r\n", b""),
        (b"GET /sandbox HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n" + UPGRADE + KEY, b""),
        (b"x" * 200_000, b""),
    ],
)
async def test_a_connection_that_is_not_an_authenticated_upgrade_is_refused(request_head: bytes, answer: bytes) -> None:
    async with open_gateway() as port:
        found = await exchange(port, request_head + b"\r\n")
        assert found.startswith(answer) if answer else found == b""


async def test_newcomers_are_limited_in_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.sandbox.gateway._HEAD_SECONDS", 0.05)
    async with open_gateway() as port:
        assert await exchange(port, b"GET /health") == b""
        monkeypatch.setattr("antiphon.sandbox.gateway._MAX_NEWCOMERS", 0)
        assert await exchange(port, b"GET /health HTTP/1.1\r\n\r\n") == b""


async def test_connections_of_servers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.sandbox.gateway._MAX_CONNECTIONS", 0)
    async with open_gateway() as port:
        assert b"serves 0 connections" in await exchange(port, b"GET /sandbox HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "need a key (--sandbox-key-file)"),
        (("--sandbox-key-file", "missing"), "missing, which --sandbox-key-file names, cannot be read"),
        (("--sandbox-key-file", "short"), "at least 16 characters"),
        (("--sandbox-key-file", "key", "--listen", "8700"), "expected HOST:PORT"),
        (("--sandbox-key-file", "key", "--sandbox", "none"), "--sandbox none"),
        (("--sandbox-key-file", "key", "--tls-certificate", "missing"), "--tls-certificate"),
    ],
)
def test_a_worker_that_cannot_start_says_why(flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "key").write_text(WORKER_KEY)
    ran = run_antiphon(tmp_path, "sandbox-worker", *flags)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert message in ran.stderr
    assert "secret" not in ran.stderr


def test_an_address_in_use_is_named(worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(WORKER_KEY)
    address = worker.url.removeprefix("http://")
    ran = run_antiphon(tmp_path, "sandbox-worker", "--sandbox-key-file", "key", "--listen", address,
                       "--sandbox-folder", str(worker.folder))  # fmt: skip
    assert (ran.returncode, f"{address} cannot be listened on" in ran.stderr) == (2, True)


def test_a_server_with_workers_needs_their_key_and_a_valid_port(tmp_path: Path) -> None:
    config = Config.from_settings(sandbox_url=("http://worker:8700",))
    with pytest.raises(StartupError, match="--sandbox-key-file"):
        make_sandbox(config)
    (tmp_path / "key").write_text(WORKER_KEY)
    config = Config.from_settings(sandbox_url=("http://worker:70000",), sandbox_key_file=tmp_path / "key")
    with pytest.raises(StartupError, match="--sandbox-url is invalid"):
        make_sandbox(config)


@pytest.mark.parametrize("url", ["worker:8700", "http://user:password@worker", "http://worker/path", "ftp://worker"])
def test_the_address_of_a_worker_has_a_scheme_a_host_and_a_port_only(url: str) -> None:
    with pytest.raises(StartupError, match="expected http://HOST:PORT or https://HOST:PORT"):
        load({"sandbox_url": (url,)})
