"""Programs in containers with a network allow-list: they may reach one host through the proxy, and nothing else.

The proxy knows these names: `allowed.test` is a host of the drill, which the policy allows. `private.test` and
`metadata.test` are in the list too, but lead to addresses that the server does not connect to. `other.test` is the host
of the drill under a name that is not in the list.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from antiphon.egress import EgressClient, EgressPolicy
from antiphon.egress.domains import DomainList
from antiphon.egress.proxy import ForwardProxy, ProxyLimits
from drills.sandbox.canaries import CanaryAddresses
from drills.sandbox.programs import Program

ALLOWED = "allowed.test"
_ADDRESSES = {
    ALLOWED: ["127.0.0.1"], "other.test": ["127.0.0.1"], "private.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"], "mixed.test": ["127.0.0.1", "10.0.0.1"],
}  # fmt: skip
_LIST = DomainList([ALLOWED, "private.test", "metadata.test", "mixed.test", "*.below.test"])
_LIMITS = ProxyLimits(bytes=8 << 20)
_MAX_READ = 65536
_SECONDS = 5.0

_HELPERS = """
import os, socket, ssl, urllib.request
def ask(*pieces):
    with socket.create_connection(("127.0.0.1", 3128), 5) as proxy:
        proxy.settimeout(2)
        found = b""
        try:
            for piece in pieces:
                proxy.sendall(piece.encode("latin-1") if isinstance(piece, str) else piece)
                if piece is not pieces[-1]:
                    found += proxy.recv(65536)
            while data := proxy.recv(65536):
                found += data
        except OSError as error:
            print(error)
        return found
def judge(answer):
    print("ESCAPED" if b"hello" in answer else "refused", answer[:100])
"""


class AllowedHost:
    """A host that answers everything. `find_reached` says what it has received and should not have."""

    def __init__(self) -> None:
        self.port = 0
        self.greeted = 0  # requests of the control
        self._received: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                data = await reader.read(_MAX_READ)
            self._received.append(data)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
            while await reader.read(_MAX_READ):
                pass
        except OSError:
            pass
        finally:
            writer.close()

    def find_reached(self) -> list[str]:
        received, self._received = [data for data in self._received if data], []
        self.greeted += sum(data.startswith(b"GET /control ") for data in received)
        return [f"the allowed host with {data[:100]!r}" for data in received if not self._is_own(data)]

    def _is_own(self, data: bytes) -> bool:
        """Whether this is one request for this host."""
        lines = data.replace(b"\r", b"\n").split(b"\n")
        hosts = [line for line in lines if line.lower().startswith((b"host:", b"host "))]
        return hosts == [b"Host: %b:%d" % (ALLOWED.encode(), self.port)] and data.count(b" HTTP/1.1\r\n") == 1


@asynccontextmanager
async def run_allowed_host() -> AsyncIterator[AllowedHost]:
    host = AllowedHost()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


def make_proxy() -> ForwardProxy:
    async def resolve(name: str, port: int) -> Sequence[str]:
        if name not in _ADDRESSES:
            raise OSError("no such host")
        return _ADDRESSES[name]

    return ForwardProxy(EgressClient(EgressPolicy([ALLOWED, "other.test"]), resolve), _LIST, _LIMITS)


def make_network_programs(canaries: CanaryAddresses, port: int) -> list[Program]:
    """Return the programs. The host of the drill is on `port`."""
    programs = {**_make_targets(canaries, port), **_make_requests(port), **_make_tunnels(port)}
    found = [Program(name, _HELPERS + code, 5.0) for name, code in _make_burdens(canaries, port).items()]
    found += [Program(name, f"{_HELPERS}judge({code})") for name, code in programs.items()]
    return [replace(program, network=True) for program in found]


def _make_targets(canaries: CanaryAddresses, port: int) -> dict[str, str]:
    """Requests for other hosts, by name and by address."""
    at_host = ("other.test", "allowed.test.other.test", "x.allowed.test", "below.test", "OTHER.TEST", "other.test.")
    at_canary = (
        "private.test", "mixed.test", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001",
        "0177.0.0.1", "127.1", "localhost", "x.localhost", "0.0.0.0", "[::]", canaries.address, "127.0.0.1.below.test",
        "PRIVATE.TEST", "private.test.", "127.0.0.1.", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]",
        "[fe80::1%25lo]", "127.0.0.1%00.allowed.test", "017700000001",
    )  # fmt: skip
    targets = [(name, port) for name in at_host] + [(name, canaries.port) for name in at_canary]
    targets += [("metadata.test", 80), ("169.254.169.254", 80), (ALLOWED, canaries.port + 70_000)]
    found = {}
    for name, number in targets:
        found[f"GET {name}:{number}"] = f"ask('GET http://{name}:{number}/ HTTP/1.1\\r\\n\\r\\n')"
        hello = _make_hello(name if name[0].isalpha() else ALLOWED)
        found[f"CONNECT {name}:{number}"] = f"ask('CONNECT {name}:{number} HTTP/1.1\\r\\n\\r\\n', {hello!r})"
    return found


def _make_requests(port: int) -> dict[str, str]:
    """Requests that a parser may understand in two ways."""
    allowed = f"{ALLOWED}:{port}"
    targets = (
        f"http://{allowed}@other.test:{port}/", f"http://other.test:{port}\\\\@{allowed}/",
        f"http://other.test:{port}/ http://{allowed}/", f"//other.test:{port}/", "/", "*", f"other.test:{port}",
        f"https://{allowed}/", f"ftp://{allowed}/", f"http://{allowed}:80/", f"http://{allowed}%2eother.test/",
    )  # fmt: skip
    found = {f"GET {target}": f"ask('GET {target} HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')" for target in targets}
    post = f"POST http://{allowed}/ HTTP/1.1\\r\\n"
    second = "GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n"
    for name, headers, body in (
        ("two lengths", "Content-Length: 1\\r\\nContent-Length: 50\\r\\n", second),
        ("a length and chunks", "Content-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n", "0\\r\\n\\r\\n" + second),
        ("chunks", "Transfer-Encoding: chunked\\r\\n", "0\\r\\n\\r\\n" + second),
        ("strange chunks", "Transfer-Encoding: xchunked\\r\\n", "0\\r\\n\\r\\n" + second),
        ("a signed length", "Content-Length: +1\\r\\n", "x" + second),
        ("a folded header", "X: 1\\r\\n Host: other.test\\r\\n", ""),
        ("a bare line end", "X: 1\\nHost: other.test\\r\\n", ""),
        ("a name with a blank", "Host : other.test\\r\\n", ""),
        ("two hosts", f"Host: {allowed}\\r\\nHost: other.test\\r\\n", ""),
        ("a length of nothing", "Content-Length: \\r\\n", second),
        ("a length in other digits", "Content-Length: 0x10\\r\\n", second),
        ("a chunk of a negative length", "Transfer-Encoding: chunked\\r\\n", "-1\\r\\n" + second),
        ("two encodings", "Transfer-Encoding: chunked, identity\\r\\n", "0\\r\\n\\r\\n" + second),
        ("a value with a zero", "X: 1\\0\\r\\n", second),
    ):
        found[f"POST with {name}"] = f"ask('{post}{headers}\\r\\n{body}').replace(b'hello', b'')"  # the host judges
    plain = f"ask('GET http://{allowed}/ HTTP/1.1\\r\\n{{}}\\r\\n{second}').replace(b'hello', b'')"
    found["another Host"] = plain.format("Host: other.test\\r\\n")
    found["an old version"] = f"ask('GET http://other.test:{port}/\\r\\n')"
    found["a new version"] = "ask('PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')"
    found["a request behind a request"] = plain.format("Connection: keep-alive\\r\\n")
    return found


def _make_tunnels(port: int) -> dict[str, str]:
    """Tunnels to the allowed host that do not begin with TLS for it."""
    connect = f"CONNECT {ALLOWED}:{port} HTTP/1.1\\r\\n\\r\\n"
    own, other = _make_hello(ALLOWED), _make_hello("other.test")
    beginnings = {
        "the name of another host": other,
        "no name": _make_hello(None),
        "an address": _make_hello("127.0.0.1"),
        "half a message": own[:60],
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP": b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "a record that is too long": b"\x16\x03\x01\xff\xff" + own[5:] * 40,
        "an empty record": b"\x16\x03\x01\0\0" + other,
        "an alert": b"\x15\x03\x01\0\x02\x01\0" + other,
        "another name with a dot": _make_hello("allowed.test.other.test"),
    }
    found = {f"a tunnel with {name}": f"ask('{connect}', {data!r})" for name, data in beginnings.items()}
    found["a tunnel with HTTP at once"] = f"ask('{connect}GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')"
    return found


def _make_burdens(canaries: CanaryAddresses, port: int) -> dict[str, str]:
    """Programs that go around the proxy or use it up; and one for which it has to work."""
    return {
        "control": f"urllib.request.urlopen('http://{ALLOWED}:{port}/control', timeout=5).read()",
        "connect without the proxy": f"socket.create_connection((socket.gethostbyname('{ALLOWED}'), {port}), 2)",
        "connect to the canary": f"socket.create_connection(('127.0.0.1', {canaries.port}), 2)\nprint('ESCAPED')",
        "listen as the proxy": "s = socket.socket()\ns.setsockopt(1, 15, 1)\ns.bind(('127.0.0.1', 3128))\n"
        "s.listen()\nprint('ESCAPED')",
        "many connections": "x = []\nwhile True: x.append(socket.create_connection(('127.0.0.1', 3128), 1))",
        "connections of many processes": "for _ in range(4): os.fork()\n"
        "for _ in range(200): socket.create_connection(('127.0.0.1', 3128), 1)",
        "an endless head": "s = socket.create_connection(('127.0.0.1', 3128), 5)\nwhile True: s.sendall(b'x' * 65536)",
        "an endless body": f"s = socket.create_connection(('127.0.0.1', 3128), 5)\ns.sendall(b'POST http://{ALLOWED}:{port}/"
        " HTTP/1.1\\r\\nContent-Length: 99999999999\\r\\n\\r\\n')\nwhile True: s.sendall(b'x' * 65536)",
        "a length beyond all numbers": f"ask('POST http://{ALLOWED}:{port}/ HTTP/1.1\\r\\nContent-Length: {'9' * 30}"
        "\\r\\n\\r\\n')",
    }


def _make_hello(name: str | None) -> bytes:
    """Return the first message of a TLS client for a host."""
    context, output = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname = False
    client = context.wrap_bio(ssl.MemoryBIO(), output, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return output.read()
