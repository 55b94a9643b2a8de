"""Drill `bombs`: more than a thousand inputs that crashed or blocked servers are sent to a whole server, one by one.

Each one is rejected (or accepted, if it is valid) quickly and in the format that clients expect. Rejected requests do
not reach the engine, the server's memory hardly grows, and its health endpoint keeps answering.
"""

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from drills.bombs.bodies import bodies
from drills.bombs.bomb import DOCUMENT_SECONDS, ENGINE_SECONDS, FAST_SECONDS, MEDIA_SECONDS, Bomb
from drills.bombs.files import documents, file_fields, files
from drills.bombs.forms import forms
from drills.bombs.health import measure_health
from drills.bombs.http import compressed, heads, targets
from drills.bombs.images import images
from drills.bombs.numbers import numbers
from drills.bombs.routes import routes
from drills.bombs.schemas import VALID_SCHEMA, as_custom_tool, as_format, as_tool, schemas
from drills.bombs.sockets import sockets
from drills.bombs.text import literals, texts
from drills.bombs.throw import ThrowResult, find_faults, throw
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.memory import MemoryMeter
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import open_storage
from tests.support.cpu import measure_slowdown
from tests.support.media_files import encode_data_url, pdf, png

MIB = 1024 * 1024
ATTEMPTS = 3  # for bombs that took too long or got no answer before the disconnect, since the machine may be busy
GROWTH_MIB, HEALTH_MS = 64.0, 50.0
_PAUSE_SECONDS = 0.05  # lets the previous bomb finish, so that two never overlap
CONFIG = {"context": 10_000_000, "log_level": "error"}
_FIGURE_NAMES = {
    FAST_SECONDS: "worst ms",
    MEDIA_SECONDS: "worst picture or file ms",
    ENGINE_SECONDS: "worst for the engine ms",
    DOCUMENT_SECONDS: "worst document ms",
}
_IMAGE_MESSAGE = {"role": "user", "content": [{"type": "input_image", "image_url": encode_data_url(png())}]}
_PDF_URL = "data:application/pdf;base64," + b64encode(pdf("Hello")).decode()
_CHAT = [{"role": "user", "content": "hi"}]
REGULAR_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("/v1/responses", {"input": "hi", "max_output_tokens": 5, **fields})
        for fields in (
            {}, {"stream": True}, as_format(VALID_SCHEMA), as_tool(VALID_SCHEMA), as_custom_tool("lark", 'start: "a"'),
            {"input": [_IMAGE_MESSAGE]}, file_fields(_PDF_URL), {"input": "x" * 300_000}, {"store": False},
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


def list_bombs(canary: str) -> list[Bomb]:
    """Return all bombs. `canary`: a file that some of them would create."""
    groups: list[Iterator[Bomb]] = [
        numbers(), bodies(), schemas(), texts(), literals(canary), routes(), compressed(), heads(), targets(), forms(),
        sockets(), files(), images(), documents(),
    ]  # fmt: skip
    return [bomb for each in groups for bomb in each]


class BombSelection(Struct, frozen=True, kw_only=True):
    step: int = 1  # every step-th bomb is sent
    attempts: int = ATTEMPTS
    documents: bool = True  # each document takes seconds

    def choose_bombs(self, canary: str) -> list[Bomb]:
        return [
            bomb for bomb in list_bombs(canary)[:: self.step] if self.documents or bomb.max_seconds < DOCUMENT_SECONDS
        ]


FULL, QUICK = BombSelection(), BombSelection(step=5)


async def bombs(selection: BombSelection, findings: Findings) -> None:
    with open_storage("sqlite") as storage, tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        with open_servers(storage, CONFIG, mark_answers=False) as processes:
            process = await processes.start()
            drill = BombDrill(process, storage.journal, findings, selection.attempts)
            await drill.throw_all(selection.choose_bombs(str(canary)))
            await process.stop()
        findings.add_violations(f"the server wrote a traceback:\n{text}" for text in processes.tracebacks)
        if canary.exists():
            findings.add_violation("code from a request was executed")


class BombDrill:
    def __init__(self, process: Process, journal: Path, findings: Findings, attempts: int) -> None:
        self._process = process
        self._journal = journal
        self._findings = findings
        self._attempts = attempts
        self._port = process.client.port
        self._first: dict[str, tuple[float, Bomb]] = {}  # slowest first attempt, by kind
        self._best: dict[str, tuple[float, Bomb]] = {}  # slowest best attempt, by kind

    async def throw_all(self, rows: list[Bomb]) -> None:
        await self._check_regular_requests()
        memory = MemoryMeter(self._process.pid)
        async with measure_health(self._port) as health:
            for bomb in rows:
                await self._throw_bomb(bomb)
                await asyncio.sleep(_PAUSE_SECONDS)
        grown = memory.measure_peak_growth()
        await self._check_regular_requests()
        self._findings.add_figure(Figure("rows", len(rows)))
        self._report_times()
        self._findings.add_figure(Figure("grown MiB", grown / MIB, maximum=GROWTH_MIB))
        self._findings.add_figure(Figure("health p99 ms", percentile(health.took, 0.99) * 1e3, maximum=HEALTH_MS))
        self._findings.add_figure(Figure("health longest ms", max(health.took, default=0.0) * 1e3))

    async def _throw_bomb(self, bomb: Bomb) -> None:
        self._findings.add_trials()
        generations = self._count_generations()
        best = await throw(self._port, bomb, self._process.pid)
        self._record_slowest(self._first, best, bomb)
        for _ in range(self._attempts - 1):
            if best.status > 0 and best.seconds <= bomb.max_seconds:
                break
            best = min(best, await throw(self._port, bomb, self._process.pid), key=_seconds)
        self._record_slowest(self._best, best, bomb)
        self._findings.add_violations(f"{bomb.name}: {fault}" for fault in find_faults(bomb, best))
        if best.seconds > bomb.max_seconds * measure_slowdown():
            self._findings.add_violation(
                f"{bomb.name}: took {best.seconds * 1e3:.0f} ms, limit {bomb.max_seconds * 1e3:.0f}"
            )
        if not bomb.reaches and self._count_generations() != generations:
            self._findings.add_violation(f"{bomb.name}: was rejected, but reached the engine")
        if not self._process.is_running:
            raise RuntimeError(f"the server exited during {bomb.name}:\n{self._process.read_output()[-3000:]}")

    def _record_slowest(self, slowest: dict[str, tuple[float, Bomb]], result: ThrowResult, bomb: Bomb) -> None:
        kind = _FIGURE_NAMES[bomb.max_seconds]
        if kind not in slowest or result.seconds > slowest[kind][0]:
            slowest[kind] = (result.seconds, bomb)

    def _count_generations(self) -> int:
        """Return the number of requests that reached the engine, from the journal."""
        return self._journal.read_bytes().count(b'"generate"') if self._journal.exists() else 0

    async def _check_regular_requests(self) -> None:
        """Check that regular requests succeed: before the bombs, which also loads all parts of the server, and after
        them.
        """
        for path, fields in REGULAR_REQUESTS:
            answer = await self._process.client.post({"model": "fake", **fields}, path)
            if answer.status != 200:
                self._findings.add_violation(
                    f"{path} returned {answer.status} to a regular request: {answer.body[:200]!r}"
                )

    def _report_times(self) -> None:
        for kind in _FIGURE_NAMES.values():
            if kind in self._best:
                seconds, bomb = self._best[kind]
                self._findings.add_figure(Figure(kind, seconds * 1e3))
                self._findings.print_line(f"{kind}: {seconds * 1e3:.1f}, bomb {bomb.name}")
                seconds, bomb = self._first[kind]
                self._findings.add_figure(Figure(f"{kind} at the first try", seconds * 1e3))
                self._findings.print_line(f"{kind} at the first try: {seconds * 1e3:.1f}, bomb {bomb.name}")


def _seconds(result: ThrowResult) -> float:
    return result.seconds if result.status > 0 else float("inf")
