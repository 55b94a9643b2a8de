"""A response's log: what happened, from which an Emitter makes the same events again at any time, anywhere.

    opening Response ── Began ── Delta* ── Ended

`Began` is `response.in_progress`; the events before it need no entry. An entry says all that its events need beyond the
opening Response: ids are made again in the same order, numbers are counted.
"""

from msgspec import Struct

from antiphon.core.deltas import Delta
from antiphon.protocol.response import IncompleteReason, ResponseStatus, Usage


class Began(Struct, frozen=True, array_like=True, tag="began"):
    """The engine was given the work."""


class Fault(Struct, frozen=True, kw_only=True):
    """An error as clients were told of it."""

    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after: float | None = None


class Ended(Struct, frozen=True, kw_only=True, array_like=True, tag="ended"):
    status: ResponseStatus
    reason: IncompleteReason | None = None
    fault: Fault | None = None
    usage: Usage | None = None
    at: int
    silent: bool = False  # nothing was to be said


Entry = Began | Delta | Ended
