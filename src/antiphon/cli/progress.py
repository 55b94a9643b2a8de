"""How far a download or a load has come: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import time

BAR = 30
REDRAW_SECONDS = 0.1
LINE_SECONDS = 5.0


class Progress:
    """Call it as often as you like with what is done of a whole, from any thread; it keeps to its own pace."""

    def __init__(self) -> None:
        self._task = ""
        self._ended = True
        self._next = 0.0

    def __call__(self, task: str, done: int, whole: int) -> None:
        ended, now, drawn = done >= whole, time.monotonic(), sys.stderr.isatty()
        if task != self._task:
            self._task, self._ended = task, False
            self._next = now if drawn else now + LINE_SECONDS
        if self._ended or (now < self._next and not ended):
            return
        self._ended = ended
        if drawn:
            self._next = now + REDRAW_SECONDS
            sys.stderr.write(f"\r{task} {_bar(done, whole)}\x1b[K" + ("\n" if ended else ""))
        else:
            self._next = now + LINE_SECONDS
            sys.stderr.write(f"{task}: {_share(done, whole)}\n")
        sys.stderr.flush()


def _share(done: int, whole: int) -> str:
    """A task that is done or not has no percentage."""
    if whole <= 1:
        return "done" if done >= whole else "…"
    return f"{100 * done // whole} %"


def _bar(done: int, whole: int) -> str:
    if whole <= 1:
        return _share(done, whole)
    filled = BAR * min(done, whole) // whole
    return f"[{'█' * filled}{'·' * (BAR - filled)}] {_share(done, whole)}"
