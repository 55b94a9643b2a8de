"""One line that tells how far a measurement is, redrawn in its place on a terminal; nothing at all elsewhere."""

import asyncio
import shutil
import sys
from collections import deque
from time import monotonic

from antiphon.cli.bench.figures import Tally
from antiphon.cli.bench.hearing import Pulse

REDRAW_SECONDS = 0.2
NOW_SECONDS = 2.0  # over which «now» is averaged


class Line:
    """`watch` follows one measurement after the other; `clear` leaves an empty line."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._drawn = sys.stderr.isatty()
        self._timer: asyncio.TimerHandle | None = None
        self._title = ""
        self._whole: int | None = None
        self._tally = Tally()
        self._before: deque[tuple[float, int]] = deque()

    def watch(self, title: str, whole: int | None, tally: Tally) -> None:
        self._title, self._whole, self._tally = title, whole, tally
        self._before.clear()
        if self._drawn and self._timer is None:
            self._draw()

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self) -> None:
        text = told(self._title, self._tally, self._whole, self._rate(monotonic()))
        columns = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{text[: columns - 1]}\x1b[K")
        sys.stderr.flush()
        self._timer = asyncio.get_running_loop().call_later(REDRAW_SECONDS, self._draw)

    def _rate(self, now: float) -> float:
        """Pieces a second, lately."""
        self._before.append((now, self._pulse.pieces))
        while now - self._before[0][0] > NOW_SECONDS:
            self._before.popleft()
        since, pieces = self._before[0]
        return (self._pulse.pieces - pieces) / (now - since) if now > since else 0.0


def told(title: str, tally: Tally, whole: int | None, rate: float) -> str:
    done = f"{tally.requests}/{whole} done" if whole is not None else f"{tally.requests} done"
    failed = f" · {tally.failed} failed" if tally.failed else ""
    return f"{title} · {done} · {rate:,.0f} tokens/s now{failed}"
