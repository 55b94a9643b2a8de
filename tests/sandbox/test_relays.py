"""Code in a container with a network, through the proxy of its call, on this host and on a worker.

Covers `sandbox/relays.py`, `sandbox/worker/relay.py`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from antiphon.egress.domains import DomainList
from antiphon.egress.proxy import ForwardProxy, ProxyLimits
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.base import make_shell_cell
from antiphon.sandbox.local import LocalSandbox
from antiphon.sandbox.worker.relay import MAX_CONNECTIONS
from antiphon.sandbox.worker_pool import WorkerPool
from tests.egress.hosts import FakeResolver, Host, make_egress_client, respond_with, run_host
from tests.support.paths import TLS
from tests.support.sandboxes import LIMITS, WorkerProcess, keep_sandbox, run_code, run_sandbox, run_worker

pytestmark = pytest.mark.anyio
NETWORK = replace(LIMITS, network=True)
Sandbox = LocalSandbox | WorkerPool

FETCH = """
import urllib.request, urllib.error
def fetch(url, data=None, **options):
    try:
        return urllib.request.urlopen(url, data, timeout=10, **options).read()
    except OSError as error:
        return str(getattr(error, "reason", error))
"""


@pytest.fixture(scope="module", params=["namespaces", "worker"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Sandbox]]:
    worker = partial(run_worker, "--sandbox", "namespaces")
    with worker() if request.param == "worker" else keep_sandbox("namespaces") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox of this level: {found}")
        yield found.make_pool if isinstance(found, WorkerProcess) else partial(LocalSandbox, found)


@pytest.fixture
async def sandbox(connect: Callable[[], Sandbox]) -> AsyncIterator[Sandbox]:
    found = connect()
    await found.start("c", NETWORK)
    yield found
    await found.stop("c")
    await found.close()


def make_proxy(*allowed: str, limits: ProxyLimits | None = None) -> ForwardProxy:
    """A proxy for which all names are hosts on loopback, and `open.example` may be connected to."""
    resolver = FakeResolver(open_example=[["127.0.0.1"]], private_example=[["127.0.0.1"]])
    return ForwardProxy(make_egress_client("open.example", resolver=resolver), DomainList(allowed), limits)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with run_host(respond_with(b"hello")) as found:
        yield found


@pytest.mark.shows("E6.9")
async def test_code_reaches_allowed_hosts_by_http_and_https(sandbox: Sandbox, host: Host) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    async with run_host(respond_with(b"secret hello"), tls=context) as secure:
        plain, tunnel = f"http://open.example:{host.port}/a?b=1", f"https://open.example:{secure.port}/"
        code = (
            f"{FETCH}\nimport ssl\nprint(fetch({plain!r}), fetch({plain!r}, b'x' * 100_000),"
            f" fetch({tunnel!r}, context=ssl._create_unverified_context()))"
        )
        record = await run_code(sandbox, code, serve=make_proxy("open.example").serve)
        assert record.stdout == "b'hello' b'hello' b'secret hello'\n", record.stderr
        assert host.heads[0].startswith(b"GET /a?b=1 HTTP/1.1\r\nHost: open.example")
    curl = make_shell_cell(f"curl -sS -m 10 {plain}")
    assert (await run_code(sandbox, curl, serve=make_proxy("open.example").serve)).stdout == "hello"


@pytest.mark.shows("E6.9")
async def test_other_hosts_private_addresses_and_direct_connections_are_refused(sandbox: Sandbox, host: Host) -> None:
    code = f"""{FETCH}
import socket
for name in ("private.example", "other.example", "127.0.0.1", "localhost"):
    for scheme in ("http", "https"):
        print(fetch(f"{{scheme}}://{{name}}:{host.port}/"))
try:
    socket.create_connection(("127.0.0.1", {host.port}), 5)
except OSError as error:
    print(error)
"""
    record = await run_code(sandbox, code, serve=make_proxy("open.example", "private.example").serve)
    lines = record.stdout.splitlines()
    assert all("private.example leads to a loopback address" in line for line in lines[:2])
    assert all("is not among the allowed domains" in line for line in lines[2:4])
    assert lines[-1] == "[Errno 111] Connection refused"
    assert not host.connects


async def test_connections_end_with_their_call_and_there_are_none_between_calls(sandbox: Sandbox, host: Host) -> None:
    code = """
import socket, threading
one = socket.create_connection(("127.0.0.1", 3128))
def connect_until_refused():
    data = b"HTTP"
    while data:
        with socket.create_connection(("127.0.0.1", 3128)) as other:
            try:
                other.sendall(b"GET http://other.example/ HTTP/1.1\\r\\n\\r\\n")
                data = other.recv(100)
            except ConnectionError:
                data = b""
    open("refused", "w").close()
thread = threading.Thread(target=connect_until_refused)
thread.start()
"""
    proxy = make_proxy("open.example")
    await run_code(sandbox, code, serve=proxy.serve)
    async with asyncio.timeout(20):
        while not await sandbox.list_files("c"):
            pass
    record = await run_code(sandbox, "thread.join(10)\none.settimeout(10)\none.recv(1)", serve=proxy.serve)
    assert "ConnectionResetError" in record.stderr or record.stdout == "b''\n"
    fetched = await run_code(sandbox, f"{FETCH}\nfetch('http://open.example:{host.port}/')", serve=proxy.serve)
    assert fetched.stdout == "b'hello'\n"


@pytest.mark.parametrize("limits", [ProxyLimits(bytes=50_000), ProxyLimits(connections=0)])
async def test_bytes_and_connections_of_a_call_are_limited(sandbox: Sandbox, limits: ProxyLimits) -> None:
    async with run_host(respond_with(b"hello" * 20_000)) as host:
        code = f"{FETCH}\nprint(fetch('http://open.example:{host.port}/'))"
        record = await run_code(sandbox, code, serve=make_proxy("open.example", limits=limits).serve)
    assert "hello" not in record.stdout


async def test_more_connections_at_a_time_than_allowed_are_closed(sandbox: Sandbox) -> None:
    code = f"""
import socket
open_ones = [socket.create_connection(("127.0.0.1", 3128)) for _ in range({MAX_CONNECTIONS + 1})]
open_ones[-1].settimeout(10)
try:
    print(open_ones[-1].recv(1))
except ConnectionResetError:
    print(b"")
"""
    assert (await run_code(sandbox, code, serve=make_proxy("open.example").serve)).stdout == "b''\n"


async def test_a_container_without_a_network_has_no_proxy(connect: Callable[[], Sandbox]) -> None:
    sandbox = connect()
    await sandbox.start("offline", LIMITS)
    code = "import os, socket\nprint(os.environ.get('http_proxy'))\nsocket.create_connection(('127.0.0.1', 3128), 5)"
    record = await run_code(sandbox, code, container="offline", serve=make_proxy("open.example").serve)
    assert record.stdout == "None\n"
    assert "ConnectionRefusedError" in record.stderr
    await sandbox.stop("offline")
    await sandbox.close()


async def test_there_is_no_network_at_another_level() -> None:
    async with run_sandbox("landlock") as sandbox:
        try:
            await sandbox.status()
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        with pytest.raises(SandboxUnavailable, match="no network at the level landlock"):
            await sandbox.start("c", NETWORK)
