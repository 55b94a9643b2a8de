"""Merges the capabilities of several engines: what all of them support, with the sum of their slots.

All members must return the same form of output, because a request is rendered and parsed for one form: the one that
most members have, chats in a tie. Members with another form get no requests.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, PromptLevel
from antiphon.engines.pool.members import PoolMember

T = TypeVar("T")

_RANKS: dict[PromptLevel, int] = {"chat": 2, "text": 1, "tokens": 0}
_NOT_ALL = "Not every engine that serves this model supports it."


class MemberCapabilities(Struct, frozen=True):
    """Capabilities of one member for a model. Comparison is fast if both objects are identical."""

    member: PoolMember
    capabilities: Capabilities

    @property
    def slots(self) -> int | None:
        return self.member.slots_for(self.capabilities)


def merge_capabilities(available: list[MemberCapabilities], serving: list[MemberCapabilities]) -> Capabilities:
    """Merge the capabilities of the `available` members, at least one, among those `serving` the model."""
    level = choose_level(available)
    matching = [one for one in available if one.capabilities.level == level]
    replicas = sum(one.capabilities.level == level for one in serving)
    return replace(_merge(matching), replicas=replicas, lane=_shared_lane(serving))


def choose_level(members: Sequence[MemberCapabilities]) -> PromptLevel:
    counts = Counter(one.capabilities.level for one in members)
    return max(counts, key=lambda level: (counts[level], _RANKS[level]))


def _merge(members: Sequence[MemberCapabilities]) -> Capabilities:
    """Merge the capabilities of members of one level, at least one."""
    first, bounded = members[0].capabilities, [one.slots for one in members if one.slots is not None]
    slots = sum(bounded) if len(bounded) == len(members) else None
    if len(members) == 1:
        return replace(first, slots=slots)
    capabilities = [one.capabilities for one in members]
    supported_fields = _intersect(each.supported_fields for each in capabilities)
    return replace(
        first,
        supported_fields=supported_fields,
        other_levels=_intersect(each.other_levels for each in capabilities),
        tasks=_intersect(each.tasks for each in capabilities),
        context=min((each.context for each in capabilities if each.context is not None), default=None),
        slots=slots,
        can_count_tokens=all(each.can_count_tokens for each in capabilities),
        takes_effort=first.takes_effort if len({each.takes_effort for each in capabilities}) == 1 else None,
        template_has_tools=all(each.template_has_tools for each in capabilities),
        needs_control_escape=any(each.needs_control_escape for each in capabilities),
        corrects_images=all(each.corrects_images for each in capabilities),
        can_generate_whole=all(each.can_generate_whole for each in capabilities),
        unsupported_reasons=_merge_reasons(members, supported_fields),
        version=", ".join(dict.fromkeys(each.version for each in capabilities if each.version)) or None,
        parsers={
            name: parser
            for name, parser in first.parsers.items()
            if all(each.parsers.get(name) == parser for each in capabilities)
        },
    )


def _shared_lane(members: Sequence[MemberCapabilities]) -> str | None:
    """Return the lane of a model: models of the same engines share slots, unless an engine has slots per model."""
    if any(one.capabilities.slots is not None for one in members):
        return None
    return " ".join(sorted(one.member.spec.location for one in members))


def _intersect(sets: Iterable[frozenset[T]]) -> frozenset[T]:
    return frozenset(reduce(and_, sets))


def _merge_reasons(members: Sequence[MemberCapabilities], supported_fields: frozenset[str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for one in members:
        for name, reason in one.capabilities.unsupported_reasons.items():
            if name not in supported_fields:
                reasons.setdefault(name, reason)
    partial = {name for one in members for name in one.capabilities.supported_fields} - supported_fields
    return {**dict.fromkeys(partial, _NOT_ALL), **reasons}
