"""What a check found: a sentence, how bad it is, and what would mend it. No secret stands in any of them."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

from msgspec import Struct

from antiphon.config import Config

Level = Literal["ok", "warning", "wrong"]


class Finding(Struct, frozen=True):
    level: Level
    text: str
    mend: str | None = None  # one sentence

    def of(self, check: str) -> "Line":
        return Line(check=check, level=self.level, text=self.text, mend=self.mend)


class Line(Struct, frozen=True, kw_only=True):
    """A finding, and whose it is."""

    check: str
    level: Level
    text: str
    mend: str | None = None


class Report(Struct, frozen=True):
    ok: bool  # nothing is wrong; there may be warnings
    findings: list[Line]


Check = Callable[[Config], Awaitable[list[Finding]]]


def fine(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str, mend: str | None = None) -> Finding:
    return Finding("warning", text, mend)


def wrong(text: str, mend: str | None = None) -> Finding:
    return Finding("wrong", text, mend)


def cut(error: BaseException, most: int = 300) -> str:
    """What an error says, on one line; what others wrote may be long."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= most else said[: most - 1] + "…"


def listed(names: list[str], most: int = 6) -> str:
    """The first few: a line is for reading."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def size(number: float) -> str:
    """Bytes as a person reads them."""
    return next(f"{number / unit:.3g} {name}" for unit, name in _units() if number >= unit or name == "bytes")


def _units() -> Iterator[tuple[float, str]]:
    yield 1024**3, "GiB"
    yield 1024**2, "MiB"
    yield 1024, "KiB"
    yield 1, "bytes"
