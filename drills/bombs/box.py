"""The bomb box: some hundred inputs that killed or choked servers, one after the other, thrown at a whole server.

Each is refused (or taken, where nothing is wrong with it) at once and in the shape that clients know; the engine hears
of none that was refused, the server grows by next to nothing, and who asks for its health meanwhile is answered.
"""

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from drills.bombs.bodies import bodies
from drills.bombs.bomb import AT_ONCE, LOOKED_AT, READ, TRIED, Bomb
from drills.bombs.files import attached, files, pdfs
from drills.bombs.forms import forms
from drills.bombs.health import looking
from drills.bombs.http import compressed, heads, targets
from drills.bombs.images import images
from drills.bombs.numbers import numbers
from drills.bombs.routes import routes
from drills.bombs.schemas import FINE, as_custom_tool, as_format, as_tool, schemas
from drills.bombs.sockets import sockets
from drills.bombs.text import literals, texts
from drills.bombs.throw import Thrown, faults, throw
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.memory import Memory
from drills.harness.process import Process, servers
from drills.harness.storage_locations import place
from tests.support.cpu import slowness
from tests.support.media_files import as_url, pdf, png

MIB = 1024 * 1024
TRIES = 3  # of what took too long, or got no answer before it was hung up on: the machine may do other things
GROWTH_MIB, HEALTH_MS = 64.0, 50.0
_PAUSE = 0.05  # seconds in which the last one is over, so that no two are there at once
CONFIG = {"context": 10_000_000, "log_level": "error"}
_NAMES = {
    AT_ONCE: "worst ms",
    LOOKED_AT: "worst picture or file ms",
    TRIED: "worst for the engine ms",
    READ: "worst PDF ms",
}
_SHOWN = {"role": "user", "content": [{"type": "input_image", "image_url": as_url(png())}]}
_READ = "data:application/pdf;base64," + b64encode(pdf("Hello")).decode()
_CHAT = [{"role": "user", "content": "hi"}]
USUAL: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("/v1/responses", {"input": "hi", "max_output_tokens": 5, **fields})
        for fields in (
            {}, {"stream": True}, as_format(FINE), as_tool(FINE), as_custom_tool("lark", 'start: "a"'),
            {"input": [_SHOWN]}, attached(_READ), {"input": "x" * 300_000}, {"store": False},
        )
    ),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    ("/v1/responses/compact", {"input": "hi"}),
    ("/v1/conversations", {"items": _CHAT}),
    ("/v1/chat/completions", {"messages": _CHAT}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/messages", {"messages": _CHAT, "max_tokens": 9}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/v1/rerank", {"query": "hi", "documents": ["hi"]}),
)  # fmt: skip


def box(canary: str) -> list[Bomb]:
    """All of them. `canary`: a file that some of them would make."""
    made: list[Iterator[Bomb]] = [
        numbers(), bodies(), schemas(), texts(), literals(canary), routes(), compressed(), heads(), targets(), forms(),
        sockets(), files(), images(), pdfs(),
    ]  # fmt: skip
    return [bomb for each in made for bomb in each]


class Box(Struct, frozen=True, kw_only=True):
    step: int = 1  # each so many-th is thrown
    tries: int = TRIES
    pdfs: bool = True  # which take seconds each

    def rows(self, canary: str) -> list[Bomb]:
        return [bomb for bomb in box(canary)[:: self.step] if self.pdfs or bomb.most < READ]


FULL, QUICK = Box(), Box(step=5)


async def bombs(chosen: Box, findings: Findings) -> None:
    with place("sqlite") as where, tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        with servers(where, CONFIG, marks=False) as processes:
            process = await processes.start()
            throwing = Throwing(process, where.journal, findings, chosen.tries)
            await throwing.throw_all(chosen.rows(str(canary)))
            await process.stop()
        findings.all_violated(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)
        if canary.exists():
            findings.violated("something that was sent was run")


class Throwing:
    def __init__(self, process: Process, journal: Path, findings: Findings, tries: int) -> None:
        self._process = process
        self._journal = journal
        self._findings = findings
        self._tries = tries
        self._port = process.client.port
        self._first: dict[str, tuple[float, Bomb]] = {}  # the longest of the first tries, by kind
        self._best: dict[str, tuple[float, Bomb]] = {}  # the longest of the best tries

    async def throw_all(self, rows: list[Bomb]) -> None:
        await self._as_usual()
        memory = Memory(self._process.pid)
        async with looking(self._port) as looks:
            for bomb in rows:
                await self._one(bomb)
                await asyncio.sleep(_PAUSE)
        grown = memory.grown()
        await self._as_usual()
        self._findings.figure(Figure("rows", len(rows)))
        self._tell_times()
        self._findings.figure(Figure("grown MiB", grown / MIB, most=GROWTH_MIB))
        if grown > GROWTH_MIB * MIB:
            self._findings.violated(f"the server grew by {grown / MIB:.1f} MiB")
        self._findings.figure(Figure("health p99 ms", percentile(looks.took, 0.99) * 1e3, most=HEALTH_MS))
        self._findings.figure(Figure("health longest ms", max(looks.took, default=0.0) * 1e3))

    async def _one(self, bomb: Bomb) -> None:
        self._findings.tried()
        heard = self._heard()
        best = await throw(self._port, bomb, self._process.pid)
        self._note(self._first, best, bomb)
        for _ in range(self._tries - 1):
            if best.status > 0 and best.seconds <= bomb.most:
                break
            best = min(best, await throw(self._port, bomb, self._process.pid), key=_seconds)
        self._note(self._best, best, bomb)
        self._findings.all_violated(f"{bomb.name}: {fault}" for fault in faults(bomb, best))
        if best.seconds > bomb.most * slowness():
            self._findings.violated(f"{bomb.name}: took {best.seconds * 1e3:.0f} ms, not {bomb.most * 1e3:.0f}")
        if not bomb.reaches and self._heard() != heard:
            self._findings.violated(f"{bomb.name}: was refused, and the engine got it")
        if not self._process.running:
            raise RuntimeError(f"the server died of {bomb.name}:\n{self._process.output()[-3000:]}")

    def _note(self, longest: dict[str, tuple[float, Bomb]], thrown: Thrown, bomb: Bomb) -> None:
        kind = _NAMES[bomb.most]
        if kind not in longest or thrown.seconds > longest[kind][0]:
            longest[kind] = (thrown.seconds, bomb)

    def _heard(self) -> int:
        """Bytes of what the engine did, in the journal."""
        return self._journal.read_bytes().count(b'"generate"') if self._journal.exists() else 0

    async def _as_usual(self) -> None:
        """What everybody asks for is answered: before the box, so that all of the server is there, and after it."""
        for path, fields in USUAL:
            answer = await self._process.client.post({"model": "fake", **fields}, path)
            if answer.status != 200:
                self._findings.violated(f"{path} is answered {answer.status} as usual: {answer.body[:200]!r}")

    def _tell_times(self) -> None:
        for most, kind in _NAMES.items():
            if kind in self._best:
                seconds, bomb = self._best[kind]
                self._findings.figure(Figure(kind, seconds * 1e3, most=most * 1e3))
                self._findings.say(f"{kind}: {seconds * 1e3:.1f}, of {bomb.name}")
                seconds, bomb = self._first[kind]
                self._findings.figure(Figure(f"{kind} at the first try", seconds * 1e3))
                self._findings.say(f"{kind} at the first try: {seconds * 1e3:.1f}, of {bomb.name}")


def _seconds(thrown: Thrown) -> float:
    return thrown.seconds if thrown.status > 0 else float("inf")
