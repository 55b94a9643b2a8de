"""What several engines can do as one: what all of them can, for as many at once as all of them take.

They have to give the same kind of output, since a request is rendered and read for one kind: that of most of them,
and of chats if as many give others. Those of another kind get no work.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import FALLEN, Capabilities, Level
from antiphon.engines.pool.member import Member

T = TypeVar("T")

_RANKS: dict[Level, int] = {"chat": 2, "text": 1, "tokens": 0}
_MOST = 256
_NOT_ALL = "Not every engine that serves this model has it."


class Able(Struct, frozen=True):
    """What one member can do with a model. Two are the same at a glance if they are of the same two objects."""

    member: Member
    able: Capabilities

    @property
    def slots(self) -> int | None:
        return self.member.slots(self.able)


class Merged:
    """What was found out last of each model: engines seldom say anything new of themselves."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[Able], list[Able], Capabilities]] = {}

    def of(self, model: str, present: list[Able], serving: list[Able], *, alone: bool = False) -> Capabilities:
        """`present`: who can be given work, of those `serving` it; at least one. `alone`: there is no other member, so
        what it says stands for all. Several may have changed places at any time."""
        known = self._known.get(model)
        if known is not None and known[0] == present and known[1] == serving:
            return known[2]
        level = level_of(present)
        standing = serving[0].able.standing.bear() if alone else FALLEN
        fit = [one for one in present if one.able.prompt == level]
        able = replace(merged(fit), lane=lane(serving), standing=standing)
        if len(self._known) >= _MOST:  # some engines serve whatever name a client thinks of
            self.forget()
        self._known[model] = present, serving, able
        return able

    def forget(self) -> None:
        """None of it stands any more."""
        for _, _, able in self._known.values():
            able.standing.fall()
        self._known.clear()


def level_of(ables: Sequence[Able]) -> Level:
    counts = Counter(one.able.prompt for one in ables)
    return max(counts, key=lambda level: (counts[level], _RANKS[level]))


def merged(ables: Sequence[Able]) -> Capabilities:
    """Of members of one level, at least one."""
    first, slots = ables[0].able, _total([one.slots for one in ables])
    if len(ables) == 1:
        return replace(first, slots=slots)
    every = [one.able for one in ables]
    honours = _common(able.honours for able in every)
    return replace(
        first,
        honours=honours,
        takes=_common(able.takes for able in every),
        does=_common(able.does for able in every),
        context=min((able.context for able in every if able.context is not None), default=None),
        slots=slots,
        counts=all(able.counts for able in every),
        knows_tools=all(able.knows_tools for able in every),
        gullible=any(able.gullible for able in every),
        wholes=all(able.wholes for able in every),
        lacks=_lacks(ables, honours),
        version=_said(able.version for able in every),
        parsers={name: by for name, by in first.parsers.items() if all(able.parsers.get(name) == by for able in every)},
    )


def lane(ables: Sequence[Able]) -> str | None:
    """Models of the same engines share the slots, unless an engine has some for each model."""
    if any(one.able.slots is not None for one in ables):
        return None
    return " ".join(sorted(one.member.seat.place for one in ables))


def _common(sets: Iterable[frozenset[T]]) -> frozenset[T]:
    return frozenset(reduce(and_, sets))


def _total(slots: Sequence[int | None]) -> int | None:
    known = [one for one in slots if one is not None]
    return sum(known) if len(known) == len(slots) else None


def _lacks(ables: Sequence[Able], honours: frozenset[str]) -> dict[str, str]:
    lacks: dict[str, str] = {}
    for one in ables:
        for name, reason in one.able.lacks.items():
            if name not in honours:
                lacks.setdefault(name, reason)
    some = {name for one in ables for name in one.able.honours} - honours
    return {**dict.fromkeys(some, _NOT_ALL), **lacks}


def _said(versions: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(version for version in versions if version)) or None
