"""Can the server be made to connect to where it must not? Every spelling, in every field that takes a URL: straight, by
a redirect, and by a name that changes its mind.

Whatever connects is seen by canaries on every address of this machine, and by the interpreter itself, which tells of
each connection before it is made.
"""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from antiphon.config import Config
from antiphon.egress import Egress, Policy
from antiphon.egress.addresses import read_address
from antiphon.engines.fake import FakeEngine
from antiphon.wiring import build_app
from drills.client import Answer
from drills.findings import Figure, Findings, percentile
from drills.in_process import LocalClient
from drills.spellings import Spelling, spellings
from tests.egress.hosts import Host, Writer, answer, hosting, moved
from tests.pictures import png

Json = dict[str, Any]
GOOD = "127.0.0.3"  # the legitimate host's, and on one port alone
_AT_ONCE = 8


class Field(Struct, frozen=True):
    """A place for a URL: the path of the request, and its body."""

    name: str
    path: str
    body: Callable[[str], Json]


def _response(*items: Json) -> Json:
    return {"model": "fake", "input": [*items], "store": False}


def _user(part: Json) -> Json:
    return {"role": "user", "content": [part]}


def _image(url: str) -> Json:
    return {"type": "input_image", "image_url": url}


def _file(url: str) -> Json:
    return {"type": "input_file", "file_url": url}


def _output(kind: str, output: Any, **call: Any) -> Json:
    return _response(
        {"type": kind, "call_id": "c", **call}, {"type": f"{kind}_output", "call_id": "c", "output": output}
    )


def _chat(part: Json) -> Json:
    return {"model": "fake", "messages": [_user(part)], "max_tokens": 16}


_WAIT = {"type": "wait"}
FIELDS = (
    Field("input_image.image_url", "/v1/responses", lambda url: _response(_user(_image(url)))),
    Field("input_file.file_url", "/v1/responses", lambda url: _response(_user(_file(url)))),
    Field(
        "function_call_output image", "/v1/responses",
        lambda url: _output("function_call", [_image(url)], name="f", arguments="{}"),
    ),
    Field(
        "function_call_output file", "/v1/responses",
        lambda url: _output("function_call", [_file(url)], name="f", arguments="{}"),
    ),
    Field(
        "custom_tool_call_output image", "/v1/responses",
        lambda url: _output("custom_tool_call", [_image(url)], name="f", input=""),
    ),
    Field(
        "computer_call_output", "/v1/responses",
        lambda url: _output("computer_call", {"type": "computer_screenshot", "image_url": url}, action=_WAIT),
    ),
    Field(
        "input_tokens", "/v1/responses/input_tokens",
        lambda url: {"model": "fake", "input": [_user(_image(url))]},
    ),
    Field(
        "chat image_url", "/v1/chat/completions",
        lambda url: _chat({"type": "image_url", "image_url": {"url": url}}),
    ),
    Field(
        "messages image", "/v1/messages",
        lambda url: _chat({"type": "image", "source": {"type": "url", "url": url}}),
    ),
    Field(
        "messages document", "/v1/messages",
        lambda url: _chat({"type": "document", "source": {"type": "url", "url": url}}),
    ),
)  # fmt: skip


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

    def __init__(self, client: LocalClient, names: Liar, good: Host, canaries: Sequence[Host], watch: Watch) -> None:
        self._client = client
        self._good = good
        self._canaries = canaries
        self._watch = watch
        self._number = 0
        self.names = names
        self.took: list[float] = []

    async def ask(self, field: Field, url: str) -> Answer:
        began = time.perf_counter()
        answered = await self._client.send("POST", field.path, field.body(url))
        self.took.append(time.perf_counter() - began)
        return answered

    def reached(self) -> int:
        """Connections to anything but the legitimate host."""
        elsewhere = [where for where in self._watch.tried if where != (GOOD, self._good.port)]
        return len(elsewhere) + sum(canary.connects for canary in self._canaries)

    def welcomed(self) -> int:
        """Connections to the legitimate host: as often seen by the interpreter as by itself, or something is blind."""
        heard = sum(where == (GOOD, self._good.port) for where in self._watch.tried)
        return heard if heard == self._good.connects else 0

    def good(self, path: str = "/picture") -> str:
        return f"http://good.example:{self._good.port}{path}"

    def redirecting(self, to: str) -> str:
        return self.good("/to?" + to.encode("utf-8", "surrogatepass").hex())

    def rebound(self, later: str, path: str) -> str:
        """A name that leads to the legitimate host now and elsewhere later."""
        self._number += 1
        self.names.bind(f"n{self._number}.example", later)
        return f"http://n{self._number}.example:{self._good.port}{path}"


async def _legitimate(head: bytes, writer: Writer) -> None:
    """A picture, or to wherever it is told to lead."""
    target = head.split(b" ")[1].decode()
    where, host = urlsplit(target), head.lower().partition(b"host: ")[2].partition(b"\r\n")[0].decode()
    if where.path == "/to":
        location = bytes.fromhex(where.query)
        writer.write(moved("@").replace(b"Location: @", b"Location: " + location))
    elif where.path == "/again":
        port = parse_qs(where.query).get("port", [host.partition(":")[2]])[0]
        writer.write(moved(f"http://{host.partition(':')[0]}:{port}/picture"))
    else:
        writer.write(answer(png(), "Content-Type: image/png"))


async def _canary(head: bytes, writer: Writer) -> None:
    writer.write(answer(png(), "Content-Type: image/png"))


@asynccontextmanager
async def _range(watch: Watch, open_too: Sequence[str]) -> AsyncIterator[tuple[Range, int]]:
    names = Liar()
    async with hosting(_canary, "0.0.0.0") as four, _six(four.port) as six, hosting(_legitimate, GOOD) as good:
        egress = Egress(Policy([f"good.example:{good.port}", f"{GOOD}:{good.port}", *open_too]), names)
        app = build_app(Config(engine="fake", store="memory"), FakeEngine(), egress=egress)
        await app.lifecycle.open()
        watch.on = True
        try:
            yield Range(LocalClient(app), names, good, [four, *six], watch), four.port
        finally:
            watch.on = False
            await app.lifecycle.close()


@asynccontextmanager
async def _six(port: int) -> AsyncIterator[list[Host]]:
    """A canary on IPv6, where there is such a thing."""
    host = Host(_canary)
    try:
        server = await asyncio.start_server(host.serve, "::1", port)
    except OSError:
        yield []
        return
    try:
        yield [host]
    finally:
        server.close()


_watch: list[Watch] = []


def _watching() -> Watch:
    """One for the process: what listens to the interpreter cannot be taken away again."""
    if not _watch:
        _watch.append(Watch())
    return _watch[0]


async def egress(step: int, findings: Findings, open_too: Sequence[str] = ()) -> None:
    """Every `step`-th spelling. `open_too`: what makes the drill fail, so that it can be seen to."""
    watch = _watching()
    watch.tried.clear()
    async with _range(watch, open_too) as (course, port):
        fields = [field for field in FIELDS if await _is_there(course, field, findings)]
        chosen = spellings(port, _own())[::step]
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for field in fields:
                group.create_task(_go_through(course, field, chosen, port, gate, findings))
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


async def _is_there(course: Range, field: Field, findings: Findings) -> bool:
    """Whether the server has such an endpoint; what it has must take a picture from where it may."""
    answered = await course.ask(field, course.good())
    if answered.status == 404:
        findings.say(f"{field.path} is not there, so {field.name} is not tried")
        return False
    return True


async def _go_through(
    course: Range, field: Field, chosen: list[Spelling], port: int, gate: asyncio.Semaphore, findings: Findings
) -> None:
    for spelling in chosen:
        urls = {"straight": spelling.url}
        if spelling.url[:1] != "/" or spelling.url[:2] == "//":  # else it is a path of the legitimate host
            urls["redirect"] = course.redirecting(spelling.url)
        if read_address(spelling.address) is not None:
            urls["rebinding"] = course.rebound(spelling.address, f"/again?port={port}")
        for way, url in urls.items():
            async with gate:
                answered = await course.ask(field, url)
            findings.tried()
            _judge(answered, f"{field.name}, {way}: {spelling.url!r}", findings)


def _judge(answered: Answer, what: str, findings: Findings) -> None:
    error = answered.error()
    if answered.status != 400:
        findings.violated(f"{what} was answered with {answered.status}")
    elif not error.get("message"):
        findings.violated(f"{what} was refused without a word")


async def _welcome(course: Range, fields: Sequence[Field], findings: Findings) -> None:
    """What is allowed passes: straight, by a redirect, and from a name that changes its mind after it was asked."""
    for field in fields:
        for way, url in (
            ("straight", course.good()),
            ("redirect", course.redirecting(course.good("/picture?2"))),
            ("redirect to a path", course.redirecting("/picture?3")),
            *((f"pinned {number}", course.rebound("127.0.0.1", "/picture")) for number in range(20)),
        ):
            answered = await course.ask(field, url)
            wanted = 400 if "file" in field.name or "document" in field.name else 200  # a picture is no text
            findings.tried()
            if answered.status != wanted or (wanted == 400 and b"picture" not in answered.body):
                findings.violated(f"{field.name}, {way}: the legitimate host was refused: {answered.body[:200]!r}")


def _own() -> str:
    """An address of this machine that others know it by, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
