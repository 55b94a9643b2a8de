"""Findings of checks: a sentence, its level, and a remedy. They contain no secrets."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal

from msgspec import Struct

from antiphon.config import Config

_UNITS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}


class Finding(Struct, frozen=True, kw_only=True):
    """One result of a check, as encoded in the JSON output."""

    check: str = ""  # name of the check
    level: Literal["ok", "warning", "wrong"]
    text: str
    mend: str | None = None  # one sentence that suggests what to do


Check = Callable[[Config], Iterator[Finding] | AsyncIterator[Finding]]  # one that is not async runs in a thread


def ok(text: str) -> Finding:
    return Finding(level="ok", text=text)


def warning(text: str, remedy: str | None = None) -> Finding:
    return Finding(level="warning", text=text, mend=remedy)


def wrong(text: str, remedy: str | None = None) -> Finding:
    return Finding(level="wrong", text=text, mend=remedy)


def shorten(error: BaseException, limit: int = 300) -> str:
    """Return the message of an error on one line, truncated: texts of other programs may be long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def format_bytes(number: float) -> str:
    """Render a number of bytes with a binary unit."""
    name, unit = next(((name, unit) for name, unit in _UNITS.items() if number >= unit), ("bytes", 1))
    return f"{number / unit:.3g} {name}"
