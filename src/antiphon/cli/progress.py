"""Progress of a download or a load: a bar on a terminal, otherwise a line every few seconds."""

import sys
import time

BAR_WIDTH = 30
REDRAW_SECONDS = 0.1
LINE_SECONDS = 5.0


class ProgressBar:
    """Call it with the done and total amount of a task, from any thread; it limits how often it prints."""

    def __init__(self) -> None:
        self._task = ""
        self._finished = True
        self._next = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        finished, now, interactive = done >= total, time.monotonic(), sys.stderr.isatty()
        if task != self._task:
            self._task, self._finished = task, False
            self._next = now if interactive else now + LINE_SECONDS
        if self._finished or (now < self._next and not finished):
            return
        self._finished = finished
        if interactive:
            self._next = now + REDRAW_SECONDS
            sys.stderr.write(f"\r{task} {_render_bar(done, total)}\x1b[K" + ("\n" if finished else ""))
        else:
            self._next = now + LINE_SECONDS
            sys.stderr.write(f"{task}: {_render_percentage(done, total)}\n")
        sys.stderr.flush()


def _render_percentage(done: int, total: int) -> str:
    """Render the progress; a task of one step has no percentage."""
    if total <= 1:
        return "done" if done >= total else "…"
    return f"{100 * done // total} %"


def _render_bar(done: int, total: int) -> str:
    if total <= 1:
        return _render_percentage(done, total)
    filled = BAR_WIDTH * min(done, total) // total
    return f"[{'█' * filled}{'·' * (BAR_WIDTH - filled)}] {_render_percentage(done, total)}"
