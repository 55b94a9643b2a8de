"""Drill `egress`: every spelling of a forbidden destination, in every field that accepts a URL: directly, through a
redirect, and through a name whose address changes (DNS rebinding).

Connections are detected by canaries on all addresses of this machine, and by an audit hook of the interpreter, which
runs before each connection is made.
"""

import asyncio
import ipaddress
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any
from urllib.parse import parse_qs, urlsplit

from antiphon.config import Config
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.egress.policy import parse_address
from antiphon.engines.fake import FakeEngine
from antiphon.wiring import build_app
from drills.egress.address_spellings import Spelling, make_spellings
from drills.egress.url_fields import FIELDS, PAGES, SERVERS, UrlField
from drills.harness.client import Answer
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.in_process import LocalClient
from drills.harness.own_address import find_own_address
from tests.egress.hosts import Host, build_redirect, build_response, run_host
from tests.support.local_servers import Reader, Writer, serve_tcp
from tests.support.media_files import png
from tests.tools.mcp.rpc_exchange import RpcExchange, send_correct_reply

GOOD = "127.0.0.3"  # address of the legitimate host, permitted on one port only
_CONCURRENCY = 8


class ConnectionMonitor:
    """Records every TCP connection that this process attempts."""

    def __init__(self) -> None:
        self.active = False
        self.attempts: list[tuple[str, int]] = []
        sys.addaudithook(self._on_audit_event)  # audit hooks cannot be removed

    def _on_audit_event(self, event: str, values: tuple[Any, ...]) -> None:
        if self.active and event == "socket.connect":
            sock, address = values
            if sock.type == socket.SOCK_STREAM and sock.family != socket.AF_UNIX:
                self.attempts.append((str(address[0]), int(address[1])))


class RebindingResolver:
    """A resolver whose bound names resolve to the legitimate host first and to the bound address afterwards."""

    def __init__(self) -> None:
        self._bound: dict[str, str] = {}
        self._resolved: set[str] = set()

    def bind(self, name: str, address: str) -> None:
        self._bound[name] = address

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if host in ("public.example", "spoofed.public.example"):
            return ["1.1.1.1"]
        if host == "good.example":
            return [GOOD]
        if host in self._bound:
            if host in self._resolved:
                return [self._bound[host]]
            self._resolved.add(host)
            return [GOOD]
        return ["127.0.0.1"]


class EgressTestbed:
    """A server, a legitimate host, and canaries."""

    def __init__(
        self, client: LocalClient, engine: FakeEngine, resolver: RebindingResolver, good: Host, canaries: "Canaries"
    ) -> None:
        self._client = client
        self._engine = engine
        self._good = good
        self._canaries = canaries
        self._number = 0
        self._redirect_statuses = cycle((302, 307, 308, 301, 303))
        self._script_lock = asyncio.Lock()  # the scripted output belongs to the next request
        self.resolver = resolver
        self.durations: list[float] = []

    async def send(self, field: UrlField, url: str) -> Answer:
        if field.script is not None:
            async with self._script_lock:
                field.script(self._engine, url)
                return await self._client.send("POST", field.path, field.body(url))
        started = time.perf_counter()
        answer = await self._client.send("POST", field.path, field.body(url))
        if field in FIELDS:
            self.durations.append(time.perf_counter() - started)
        return answer

    def count_forbidden(self) -> int:
        """Return the number of connections to anything but the legitimate host."""
        return len(self._canaries.forbidden_attempts((GOOD, self._good.port))) + self._canaries.connects

    def count_beyond_loopback(self) -> int:
        """Return the number of forbidden connections to addresses other than loopback."""
        addresses = self._canaries.forbidden_attempts((GOOD, self._good.port))
        return sum(not ipaddress.ip_address(host.partition("%")[0]).is_loopback for host, _ in addresses)

    def count_legitimate(self) -> int:
        """Return the number of connections to the legitimate host; 0 if the audit hook and the host disagree."""
        attempts = self._canaries.count_attempts((GOOD, self._good.port))
        return attempts if attempts == self._good.connects else 0

    def good_url(self, path: str) -> str:
        return f"http://good.example:{self._good.port}{path}"

    def redirect_url(self, target: str) -> str:
        return self.good_url(f"/to{next(self._redirect_statuses)}?" + target.encode("utf-8", "surrogatepass").hex())

    def rebinding_url(self, address: str, path: str) -> str:
        """Return a URL whose name resolves to the legitimate host once and to `address` afterwards."""
        self._number += 1
        self.resolver.bind(f"n{self._number}.example", address)
        return f"http://n{self._number}.example:{self._good.port}{path}"


class Canaries:
    """All detectors of forbidden connections: listeners, and the audit hook."""

    def __init__(self, hosts: Sequence[Host], monitor: ConnectionMonitor) -> None:
        self._hosts = hosts
        self._monitor = monitor

    @property
    def connects(self) -> int:
        return sum(host.connects for host in self._hosts)

    def forbidden_attempts(self, good: tuple[str, int]) -> list[tuple[str, int]]:
        return [address for address in self._monitor.attempts if address != good]

    def count_attempts(self, good: tuple[str, int]) -> int:
        return self._monitor.attempts.count(good)

    def reset(self) -> None:
        self._monitor.attempts.clear()
        for host in self._hosts:
            host.connects = 0


class LegitimateHost(Host):
    """Serves an image, a page, an MCP server and a search, and redirects to any requested URL."""

    def __init__(self) -> None:
        super().__init__(_serve_page)

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connects += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            writer.close()

    async def _answer(self, reader: Reader, writer: Writer) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.split(b" ")[1].startswith(b"/mcp"):
            await _serve_page(head, writer)
            await writer.drain()
            return False
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        await send_correct_reply(RpcExchange(head, await reader.readexactly(length), writer, ""))
        return True


async def _serve_page(head: bytes, writer: Writer) -> None:
    url = urlsplit(head.split(b" ")[1].decode())
    name, _, port = head.lower().partition(b"host: ")[2].partition(b"\r\n")[0].decode().partition(":")
    match url.path:
        case path if path.startswith("/to"):
            response = build_redirect("@", int(path[3:])).replace(
                b"Location: @", b"Location: " + bytes.fromhex(url.query)
            )
            writer.write(response)
        case "/again":
            params = parse_qs(url.query)
            writer.write(build_redirect(f"http://{name}:{params.get('port', [port])[0]}{params['page'][0]}", 307))
        case "/page":
            writer.write(build_response(b"A page about otters, and what they like to eat.", "Content-Type: text/plain"))
        case "/search":
            writer.write(_search_response(parse_qs(url.query)["q"][0]))
        case _:
            writer.write(build_response(png(), "Content-Type: image/png"))


def _search_response(query: str) -> bytes:
    """Return a search result with the URL that the query contains in hexadecimal."""
    url = bytes.fromhex(query).decode("utf-8", "surrogatepass")
    body = {"query": query, "results": [{"url": url, "title": "It", "content": "is found."}]}
    return build_response(json.dumps(body).encode(), "Content-Type: application/json")


async def _serve_canary(head: bytes, writer: Writer) -> None:
    writer.write(build_response(png(), "Content-Type: image/png"))


@asynccontextmanager
async def _run_testbed(
    monitor: ConnectionMonitor, extra_allowed: Sequence[str], local_mode: bool
) -> AsyncIterator[tuple[EgressTestbed, Canaries, int]]:
    """Run a server with its surroundings. `local_mode`: the server listens on loopback and has no keys."""
    resolver, good, engine = RebindingResolver(), LegitimateHost(), FakeEngine()
    async with (
        run_host(_serve_canary, "0.0.0.0") as four,
        _run_ipv6_canary(four.port) as six,
        _run_legitimate_host(good),
    ):
        canaries = Canaries([four, *six], monitor)
        config = Config.from_settings(
            engine="fake",
            store="memory",
            host="127.0.0.1" if local_mode else "0.0.0.0",
            tool_list_timeout=5.0,
            web_search=WebSearchSettings(url=f"searxng+http://good.example:{good.port}"),
        )
        egress = EgressClient(
            EgressPolicy([f"good.example:{good.port}", f"{GOOD}:{good.port}", *extra_allowed]), resolver
        )
        app = build_app(config, engine, egress=egress)
        await app.lifecycle.open()
        canaries.reset()
        monitor.active = True
        try:
            yield EgressTestbed(LocalClient(app), engine, resolver, good, canaries), canaries, four.port
        finally:
            monitor.active = False
            await app.lifecycle.close()


@asynccontextmanager
async def _run_legitimate_host(host: Host) -> AsyncIterator[None]:
    async with serve_tcp(host.serve, host=GOOD) as host.port:
        yield


@asynccontextmanager
async def _run_ipv6_canary(port: int) -> AsyncIterator[list[Host]]:
    """Run a canary on IPv6 if the machine supports it."""
    host = Host(_serve_canary)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(serve_tcp(host.serve, port, "::1"))
        except OSError:
            yield []
        else:
            yield [host]


_monitors: list[ConnectionMonitor] = []


def _get_monitor() -> ConnectionMonitor:
    """Return the only monitor of the process: audit hooks cannot be removed."""
    if not _monitors:
        _monitors.append(ConnectionMonitor())
    return _monitors[0]


async def egress(step: int, findings: Findings, extra_allowed: Sequence[str] = ()) -> None:
    """Try every `step`-th spelling.

    `extra_allowed`: destinations that are permitted additionally, so that tests can verify that the drill detects
    connections.
    """
    monitor = _get_monitor()
    async with _run_testbed(monitor, extra_allowed, local_mode=False) as (testbed, _, port):
        await _check_remote_mode(testbed, make_spellings(port, find_own_address())[::step], port, findings)
    async with _run_testbed(monitor, extra_allowed, local_mode=True) as (testbed, canaries, port):
        await _check_local_mode(testbed, canaries, make_spellings(port, find_own_address())[::step], port, findings)


async def _check_remote_mode(testbed: EgressTestbed, chosen: list[Spelling], port: int, findings: Findings) -> None:
    fields = (*FIELDS, *SERVERS, *PAGES)
    gate = asyncio.Semaphore(_CONCURRENCY)
    async with asyncio.TaskGroup() as group:
        for field in (*FIELDS, *SERVERS):
            group.create_task(_try_spellings(testbed, field, chosen, port, gate, findings))
    for field in PAGES:
        await _try_spellings(testbed, field, chosen, port, gate, findings)
    await _check_legitimate(testbed, fields, findings)
    reached = testbed.count_forbidden()
    if reached:
        findings.add_violation(f"{reached} connections were made to forbidden destinations")
    if not testbed.count_legitimate():
        findings.add_violation("not all connections to the legitimate host were detected")
    findings.add_figure(Figure("spellings", len(chosen)))
    findings.add_figure(Figure("fields", len(fields)))
    findings.add_figure(Figure("legitimate connects", testbed.count_legitimate()))
    findings.add_figure(Figure("reached", reached, maximum=0))
    findings.add_figure(Figure("p99 ms", 1000 * percentile(testbed.durations, 0.99), maximum=100))


async def _check_local_mode(
    testbed: EgressTestbed, canaries: Canaries, chosen: list[Spelling], port: int, findings: Findings
) -> None:
    """Check a server on loopback: requests may name an MCP server on loopback, by address or as localhost, and nothing
    else.
    """
    gate, server = asyncio.Semaphore(_CONCURRENCY), SERVERS[0]
    await _try_spellings(testbed, FIELDS[0], chosen, port, gate, findings)
    for field in PAGES:
        await _try_spellings(testbed, field, chosen, port, gate, findings)
    await _try_spellings(testbed, server, chosen, port, gate, findings, ("redirect", "rebinding"))
    if reached := testbed.count_forbidden():
        findings.add_violation(f"in local mode, {reached} connections were made to forbidden destinations")
    canaries.reset()
    for spelling in chosen:
        await testbed.send(server, spelling.url)
        findings.add_trials()
    if not_loopback := testbed.count_beyond_loopback():
        findings.add_violation(f"in local mode, {not_loopback} connections were made beyond loopback")
    canaries.reset()
    for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"):
        await testbed.send(server, url)
    if not canaries.connects:
        findings.add_violation("in local mode, an MCP server on loopback is not reached")
    findings.add_figure(Figure("reached from home", reached, maximum=0))


async def _try_spellings(
    testbed: EgressTestbed,
    field: UrlField,
    chosen: list[Spelling],
    port: int,
    gate: asyncio.Semaphore,
    findings: Findings,
    methods: Sequence[str] = ("straight", "redirect", "rebinding"),
) -> None:
    for spelling in chosen:
        urls = {"straight": spelling.url}
        if spelling.url[:1] != "/" or spelling.url[:2] == "//":  # otherwise it is a path on the legitimate host
            urls["redirect"] = testbed.redirect_url(spelling.url)
        if parse_address(spelling.address) is not None:
            urls["rebinding"] = testbed.rebinding_url(spelling.address, f"/again?port={port}&page={field.page}")
        for method, url in urls.items():
            if method not in methods:
                continue
            async with gate:
                answer = await testbed.send(field, url)
            findings.add_trials()
            if problem := field.find_problem(answer):
                findings.add_violation(f"{field.name}, {method}: {spelling.url!r} {problem}")


async def _check_legitimate(testbed: EgressTestbed, fields: Sequence[UrlField], findings: Findings) -> None:
    """Check that permitted URLs are fetched: directly, through a redirect, and by a name that changes after it was
    resolved.
    """
    for field in fields:
        urls = {"straight": testbed.good_url(field.page)}
        if field not in SERVERS:  # requests to MCP servers follow no redirects
            urls["redirect"] = testbed.redirect_url(testbed.good_url(f"{field.page}?2"))
            urls["redirect to a path"] = testbed.redirect_url(f"{field.page}?3")
            urls |= {f"pinned {number}": testbed.rebinding_url("127.0.0.1", field.page) for number in range(20)}
        for method, url in urls.items():
            answer = await testbed.send(field, url)
            findings.add_trials()
            if not field.is_accepted(answer):
                findings.add_violation(
                    f"{field.name}, {method}: the legitimate host was rejected: {answer.body[:300]!r}"
                )
