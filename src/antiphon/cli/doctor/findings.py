"""Findings of checks: a sentence, its level, and a remedy. They contain no secrets."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

from msgspec import Struct

from antiphon.config import Config

FindingLevel = Literal["ok", "warning", "wrong"]


class Finding(Struct, frozen=True):
    """One result of a check."""

    level: FindingLevel
    text: str
    remedy: str | None = None  # one sentence that suggests what to do

    def to_line(self, check: str) -> "ReportLine":
        return ReportLine(check=check, level=self.level, text=self.text, mend=self.remedy)


class ReportLine(Struct, frozen=True, kw_only=True):
    """A finding with the name of its check, as encoded in the JSON output."""

    check: str
    level: FindingLevel
    text: str
    mend: str | None = None


class DoctorReport(Struct, frozen=True):
    """The JSON output of the command."""

    ok: bool  # nothing is wrong; warnings are allowed
    findings: list[ReportLine]


Check = Callable[[Config], Awaitable[list[Finding]]]


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str, remedy: str | None = None) -> Finding:
    return Finding("warning", text, remedy)


def wrong(text: str, remedy: str | None = None) -> Finding:
    return Finding("wrong", text, remedy)


def shorten(error: BaseException, limit: int = 300) -> str:
    """Return the message of an error on one line, truncated: texts of other programs may be long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def join_names(names: list[str], limit: int = 6) -> str:
    """Join the first names, to keep the line readable."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def format_bytes(number: float) -> str:
    """Render a number of bytes with a binary unit."""
    return next(f"{number / unit:.3g} {name}" for unit, name in _units() if number >= unit or name == "bytes")


def _units() -> Iterator[tuple[float, str]]:
    yield 1024**3, "GiB"
    yield 1024**2, "MiB"
    yield 1024, "KiB"
    yield 1, "bytes"
