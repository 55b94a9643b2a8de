"""Can the server be made to connect to where it must not? Every spelling, in every place for a URL: straight, by a
redirect, and by a name that changes its mind.

Whatever connects is seen by canaries on every address of this machine, and by the interpreter itself, which tells of
each connection before it is made.
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
from antiphon.config.web_search import WebSearchSettings
from antiphon.egress import Egress, Policy
from antiphon.egress.addresses import read_address
from antiphon.engines.fake import FakeEngine
from antiphon.wiring import build_app
from drills.egress.address_spellings import Spelling, spellings
from drills.egress.url_fields import FIELDS, PAGES, SERVERS, Field
from drills.harness.client import Answer
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.in_process import LocalClient
from tests.egress.hosts import Host, Reader, Writer, answer, hosting, moved
from tests.support.local_servers import tcp
from tests.support.media_files import png
from tests.tools.mcp.rpc_exchange import Talk, behave

GOOD = "127.0.0.3"  # the legitimate host's, and on one port alone
_AT_ONCE = 8


class Watch:
    """Every connection that this process tries to make with TCP."""

    def __init__(self) -> None:
        self.on = False
        self.tried: list[tuple[str, int]] = []
        sys.addaudithook(self._hear)  # for as long as the process lives

    def _hear(self, event: str, values: tuple[Any, ...]) -> None:
        if self.on and event == "socket.connect":
            made, where = values
            if made.type == socket.SOCK_STREAM and made.family != socket.AF_UNIX:
                self.tried.append((str(where[0]), int(where[1])))


class Liar:
    """A name server. What is bound to a name once is its first answer; whoever asks again gets another one."""

    def __init__(self) -> None:
        self._later: dict[str, str] = {}
        self._asked: set[str] = set()

    def bind(self, name: str, later: str) -> None:
        self._later[name] = later

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if host in ("public.example", "spoofed.public.example"):
            return ["1.1.1.1"]
        if host == "good.example":
            return [GOOD]
        if host in self._later:
            if host in self._asked:
                return [self._later[host]]
            self._asked.add(host)
            return [GOOD]
        return ["127.0.0.1"]


class Range:
    """A server, a legitimate host, and canaries."""

    def __init__(self, client: LocalClient, engine: FakeEngine, names: Liar, good: Host, canaries: "Canaries") -> None:
        self._client = client
        self._engine = engine
        self._good = good
        self._canaries = canaries
        self._number = 0
        self._moves = cycle((302, 307, 308, 301, 303))
        self._speaking = asyncio.Lock()  # what the model is to say is for the next request
        self.names = names
        self.took: list[float] = []

    async def ask(self, field: Field, url: str) -> Answer:
        if field.says is not None:
            async with self._speaking:
                field.says(self._engine, url)
                return await self._client.send("POST", field.path, field.body(url))
        began = time.perf_counter()
        answered = await self._client.send("POST", field.path, field.body(url))
        if field in FIELDS:
            self.took.append(time.perf_counter() - began)
        return answered

    def reached(self) -> int:
        """Connections to anything but the legitimate host."""
        return len(self._canaries.elsewhere((GOOD, self._good.port))) + self._canaries.connects

    def reached_beyond(self) -> int:
        """Those of them that did not stay on this machine's loopback."""
        elsewhere = self._canaries.elsewhere((GOOD, self._good.port))
        return sum(not ipaddress.ip_address(host.partition("%")[0]).is_loopback for host, _ in elsewhere)

    def welcomed(self) -> int:
        """Connections to the legitimate host: as often seen by the interpreter as by itself, or something is blind."""
        heard = self._canaries.heard((GOOD, self._good.port))
        return heard if heard == self._good.connects else 0

    def good(self, path: str) -> str:
        return f"http://good.example:{self._good.port}{path}"

    def redirecting(self, to: str) -> str:
        return self.good(f"/to{next(self._moves)}?" + to.encode("utf-8", "surrogatepass").hex())

    def rebound(self, later: str, path: str) -> str:
        """A name that leads to the legitimate host now and elsewhere later."""
        self._number += 1
        self.names.bind(f"n{self._number}.example", later)
        return f"http://n{self._number}.example:{self._good.port}{path}"


class Canaries:
    """All that hears of a connection that should not be: listeners, and the interpreter."""

    def __init__(self, hosts: Sequence[Host], watch: Watch) -> None:
        self._hosts = hosts
        self._watch = watch

    @property
    def connects(self) -> int:
        return sum(host.connects for host in self._hosts)

    def elsewhere(self, good: tuple[str, int]) -> list[tuple[str, int]]:
        return [where for where in self._watch.tried if where != good]

    def heard(self, good: tuple[str, int]) -> int:
        return self._watch.tried.count(good)

    def forget(self) -> None:
        self._watch.tried.clear()
        for host in self._hosts:
            host.connects = 0


class Legitimate(Host):
    """Has a picture, a page, an MCP server and a search, and leads to wherever it is told to."""

    def __init__(self) -> None:
        super().__init__(_shown)

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connects += 1
        try:
            while await self._answered(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # they had enough
        finally:
            writer.close()

    async def _answered(self, reader: Reader, writer: Writer) -> bool:
        """Whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.split(b" ")[1].startswith(b"/mcp"):
            await _shown(head, writer)
            await writer.drain()
            return False
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        await behave(Talk(head, await reader.readexactly(length), writer, ""))
        return True


async def _shown(head: bytes, writer: Writer) -> None:
    where = urlsplit(head.split(b" ")[1].decode())
    name, _, port = head.lower().partition(b"host: ")[2].partition(b"\r\n")[0].decode().partition(":")
    match where.path:
        case path if path.startswith("/to"):
            led = moved("@", int(path[3:])).replace(b"Location: @", b"Location: " + bytes.fromhex(where.query))
            writer.write(led)
        case "/again":
            asked = parse_qs(where.query)
            writer.write(moved(f"http://{name}:{asked.get('port', [port])[0]}{asked['page'][0]}", 307))
        case "/page":
            writer.write(answer(b"A page about otters, and what they like to eat.", "Content-Type: text/plain"))
        case "/search":
            writer.write(_found(parse_qs(where.query)["q"][0]))
        case _:
            writer.write(answer(png(), "Content-Type: image/png"))


def _found(query: str) -> bytes:
    """What was asked for, in hexadecimal."""
    url = bytes.fromhex(query).decode("utf-8", "surrogatepass")
    told = {"query": query, "results": [{"url": url, "title": "It", "content": "is found."}]}
    return answer(json.dumps(told).encode(), "Content-Type: application/json")


async def _canary(head: bytes, writer: Writer) -> None:
    writer.write(answer(png(), "Content-Type: image/png"))


@asynccontextmanager
async def _range(watch: Watch, open_too: Sequence[str], at_home: bool) -> AsyncIterator[tuple[Range, Canaries, int]]:
    """`at_home`: the server listens on loopback and has no keys."""
    names, good, engine = Liar(), Legitimate(), FakeEngine()
    async with hosting(_canary, "0.0.0.0") as four, _six(four.port) as six, _hosted(good):
        canaries = Canaries([four, *six], watch)
        config = Config(
            engine="fake",
            store="memory",
            host="127.0.0.1" if at_home else "0.0.0.0",
            tool_list_timeout=5.0,
            web_search=WebSearchSettings(url=f"searxng+http://good.example:{good.port}"),
        )
        egress = Egress(Policy([f"good.example:{good.port}", f"{GOOD}:{good.port}", *open_too]), names)
        app = build_app(config, engine, egress=egress)
        await app.lifecycle.open()
        canaries.forget()
        watch.on = True
        try:
            yield Range(LocalClient(app), engine, names, good, canaries), canaries, four.port
        finally:
            watch.on = False
            await app.lifecycle.close()


@asynccontextmanager
async def _hosted(host: Host) -> AsyncIterator[None]:
    async with tcp(host.serve, host=GOOD) as host.port:
        yield


@asynccontextmanager
async def _six(port: int) -> AsyncIterator[list[Host]]:
    """A canary on IPv6, where there is such a thing."""
    host = Host(_canary)
    async with AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(tcp(host.serve, port, "::1"))
        except OSError:
            yield []
        else:
            yield [host]


_watch: list[Watch] = []


def _watching() -> Watch:
    """One for the process: what listens to the interpreter cannot be taken away again."""
    if not _watch:
        _watch.append(Watch())
    return _watch[0]


async def egress(step: int, findings: Findings, open_too: Sequence[str] = ()) -> None:
    """Every `step`-th spelling. `open_too`: what makes the drill fail, so that it can be seen to."""
    watch = _watching()
    async with _range(watch, open_too, at_home=False) as (course, _, port):
        await _abroad(course, spellings(port, _own())[::step], port, findings)
    async with _range(watch, open_too, at_home=True) as (course, canaries, port):
        await _at_home(course, canaries, spellings(port, _own())[::step], port, findings)


async def _abroad(course: Range, chosen: list[Spelling], port: int, findings: Findings) -> None:
    fields = (*FIELDS, *SERVERS, *PAGES)
    gate = asyncio.Semaphore(_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for field in (*FIELDS, *SERVERS):
            group.create_task(_go_through(course, field, chosen, port, gate, findings))
    for field in PAGES:
        await _go_through(course, field, chosen, port, gate, findings)
    await _welcome(course, fields, findings)
    reached = course.reached()
    if reached:
        findings.violated(f"{reached} connections were made to where nobody may go")
    if not course.welcomed():
        findings.violated("not all connections to the legitimate host were seen")
    findings.figure(Figure("spellings", len(chosen)))
    findings.figure(Figure("fields", len(fields)))
    findings.figure(Figure("legitimate connects", course.welcomed()))
    findings.figure(Figure("reached", reached, most=0))
    findings.figure(Figure("p99 ms", 1000 * percentile(course.took, 0.99), most=50))


async def _at_home(course: Range, canaries: Canaries, chosen: list[Spelling], port: int, findings: Findings) -> None:
    """One's own machine: an MCP server on loopback may be named, by its address or as localhost, and nothing else."""
    gate, server = asyncio.Semaphore(_AT_ONCE), SERVERS[0]
    await _go_through(course, FIELDS[0], chosen, port, gate, findings)
    for field in PAGES:
        await _go_through(course, field, chosen, port, gate, findings)
    await _go_through(course, server, chosen, port, gate, findings, ("redirect", "rebinding"))
    if reached := course.reached():
        findings.violated(f"at home, {reached} connections were made to where nobody may go")
    canaries.forget()
    for spelling in chosen:
        await course.ask(server, spelling.url)
        findings.tried()
    if beyond := course.reached_beyond():
        findings.violated(f"at home, {beyond} connections were made beyond loopback")
    canaries.forget()
    for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"):
        await course.ask(server, url)
    if not canaries.connects:
        findings.violated("at home, an MCP server on loopback is not reached")
    findings.figure(Figure("reached from home", reached, most=0))


async def _go_through(
    course: Range,
    field: Field,
    chosen: list[Spelling],
    port: int,
    gate: asyncio.Semaphore,
    findings: Findings,
    ways: Sequence[str] = ("straight", "redirect", "rebinding"),
) -> None:
    for spelling in chosen:
        urls = {"straight": spelling.url}
        if spelling.url[:1] != "/" or spelling.url[:2] == "//":  # else it is a path of the legitimate host
            urls["redirect"] = course.redirecting(spelling.url)
        if read_address(spelling.address) is not None:
            urls["rebinding"] = course.rebound(spelling.address, f"/again?port={port}&page={field.page}")
        for way, url in urls.items():
            if way not in ways:
                continue
            async with gate:
                answered = await course.ask(field, url)
            findings.tried()
            if wrong := field.wrong(answered):
                findings.violated(f"{field.name}, {way}: {spelling.url!r} {wrong}")


async def _welcome(course: Range, fields: Sequence[Field], findings: Findings) -> None:
    """What is allowed passes: straight, by a redirect, and from a name that changes its mind after it was asked."""
    for field in fields:
        ways = {"straight": course.good(field.page)}
        if field not in SERVERS:  # what is meant for one place alone follows no redirect
            ways["redirect"] = course.redirecting(course.good(f"{field.page}?2"))
            ways["redirect to a path"] = course.redirecting(f"{field.page}?3")
            ways |= {f"pinned {number}": course.rebound("127.0.0.1", field.page) for number in range(20)}
        for way, url in ways.items():
            answered = await course.ask(field, url)
            findings.tried()
            if not field.welcomes(answered):
                findings.violated(f"{field.name}, {way}: the legitimate host was refused: {answered.body[:300]!r}")


def _own() -> str:
    """An address of this machine that others know it by, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
