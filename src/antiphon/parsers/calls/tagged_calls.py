"""Calls with name and parameters in tags: <function=f><parameter=a>1</parameter></function>.

    NAME ──▶ BODY ──parameter tag──▶ KEY ──▶ (GAP) ──▶ VALUE ──its end──▶ BODY … ──closing──▶ FINISHED
      └──no name: REJECTED

An unclosed parameter ends where the next one begins or the call ends. Text between parameters is discarded, unless
there are no parameters and it is the arguments as JSON; at the end of the output it is returned as text.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, TagFrame
from antiphon.parsers.calls.delimited_calls import MAX_BUFFERED, BufferRule, CallReader, DelimitedCalls, MarkerFinder
from antiphon.parsers.calls.typed_values import (
    ANY,
    TEXT,
    ToolParameters,
    TypedValue,
    as_json_object,
    convert_value,
    to_json_string,
)
from antiphon.parsers.json_repair import skip_space

MAX_NAME_LENGTH: Final = 256
NON_NAME_CHARS: Final = frozenset(" \t\r\n<>{}()[]\"'`=,;\\")
TAG_RULE: Final = BufferRule(frozenset(">"))
_NAME_RULE: Final = BufferRule(NON_NAME_CHARS - frozenset("\t\r\n<\"'="))  # until the tag ends, or no name can follow


class TagFinders(NamedTuple):
    """The finders between parameters and within a value, and the rules for a parameter, a value and a string."""

    body: MarkerFinder
    value: MarkerFinder
    parameter_rule: BufferRule
    value_rule: BufferRule
    string_rule: BufferRule


class TaggedCallState(IntEnum):
    NAME = 0
    BODY = 1
    KEY = 2
    GAP = 3
    VALUE = 4
    FINISHED = 5
    REJECTED = 6


NAME, BODY, KEY, GAP, VALUE, FINISHED, REJECTED = TaggedCallState  # module globals: faster to look up on the token path


class TaggedCall(CallReader):
    """Parses one call. `strict`: only offered tools can be called."""

    def __init__(self, number: int, calls: "TaggedCalls", strict: bool) -> None:
        super().__init__(number)
        self._tags = calls.tags
        self._tools = calls.tools
        self._strict = strict
        self._finders = calls.finders
        self._budget = calls.budget
        self._state = NAME
        self._parameters: ToolParameters  # set with the name
        self._value: TypedValue | None = None  # set while a value is incomplete
        self._pending_name = ""  # name of a value of which nothing was emitted yet, as JSON
        self._seen: set[str] = set()
        self._key = ""
        self._types = ANY
        self._filler: list[str] = []

    def feed_string(self, text: str) -> str:
        value = self._value
        if value is None or self._pending_name or self._finders.value.may_occur_in(text):
            return ""
        return value.feed_string(text)

    def get_buffer_rule(self) -> BufferRule:
        """Return the buffering rule: strings are streamed, other values are converted when they are complete."""
        if self._state is NAME:
            return _NAME_RULE
        if self._state is not VALUE or self._value is None:
            return self._finders.parameter_rule
        return self._finders.value_rule if self._value.is_buffering else self._finders.string_rule

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        more = True
        while more and at < len(text) and self._state < FINISHED:
            state = self._state
            if state is VALUE:
                at, more = self._read_value(text, at, out)
            elif state is BODY:
                at, more = self._read_body(text, at, out)
            elif state is KEY:
                at, more = self._read_key(text, at, out)
            elif state is GAP:
                at, more = self._read_gap(text, at)
            else:
                at, more = self._read_name(text, at, out)
        return at, more

    def finish(self, pending: str, out: list[Piece]) -> str:
        """Complete the call at the end of the output. A truncated tag is not part of the value."""
        text = ""
        if self._state is VALUE:
            self._finish_value(pending, out)
        elif self._state is BODY:
            text = "".join(self._filler) + pending
            self._filler.clear()
        self._finish_call(out)
        return text if text.strip() else ""

    def _finish_value(self, pending: str, out: list[Piece]) -> None:
        if self._value is None:  # the value was only buffered so far
            self._value = TypedValue(self._types, self._tags.lead, self._tags.tail)
            self._emit(self._value.feed(pending[: self._finders.value.find_partial(pending)]), out)
        self._emit(self._value.finish(cut=True), out)

    # Name.

    def _read_name(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        name, end = self._read_untagged_name(text, at) if self._tags.name_ends else self._read_tagged_name(text, at)
        if end < 0:
            return at, False
        if not is_name(name) or (self._strict and name not in self._tools):
            self._state = REJECTED
            self.rejected = True
            return at, True
        self._state = BODY
        self.started = True
        self._parameters = ToolParameters(self._tools.get(name))
        out.append(CallStarted(self.number, name))
        return end, True

    def _read_tagged_name(self, text: str, at: int) -> tuple[str, int]:
        """Return the name and the position after it; position -1 if more text is needed. "" is not a name."""
        key_end = self._tags.key_end
        end = text.find(key_end, at, at + MAX_NAME_LENGTH)
        content = text[at : end if end >= 0 else at + MAX_NAME_LENGTH]
        if "\n" in content or (end < 0 and len(content) == MAX_NAME_LENGTH):
            return "", 0
        return (_split_attributes(content)[0], end + len(key_end)) if end >= 0 else ("", -1)

    def _read_untagged_name(self, text: str, at: int) -> tuple[str, int]:
        end = text.find("<", at, at + MAX_NAME_LENGTH)
        name = text[at : end if end >= 0 else at + MAX_NAME_LENGTH].strip()
        if end < 0:
            may_continue = len(text) - at < MAX_NAME_LENGTH and (not name or is_name(name))
            return "", -1 if may_continue else 0
        for marker in self._tags.name_ends:
            if text.startswith(marker, end):
                return name, end + len(marker) * (marker not in (self._tags.key, self._tags.call_end))
            if _is_prefix(marker, text, end):
                return "", -1
        return "", 0

    # Between parameters.

    def _read_body(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        position, marker = self._finders.body.find_next(text, at)
        if position > at:
            self._filler.append(text[at:position])
        if not marker:
            return position, False
        if marker == self._tags.key:
            self._state = KEY
        elif marker == self._tags.call_end:
            self._read_json_arguments(out)
            self._finish_call(out)
        else:
            self._finish_call(out)
            return position, True
        return position + len(marker), True

    def _read_json_arguments(self, out: list[Piece]) -> None:
        """Read the arguments as JSON if there are no parameters."""
        if not self._seen and (arguments := as_json_object("".join(self._filler))):
            self._seen.add("")
            out.append(CallDelta(self.number, arguments[:-1]))

    def _read_key(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        end = text.find(self._tags.key_end, at, at + MAX_NAME_LENGTH)
        if end < 0 and len(text) - at < MAX_NAME_LENGTH:
            return at, False
        self._filler.clear()
        self._key, attributes = _split_attributes(text[at:end]) if end >= 0 else ("", "")
        if not self._budget.take():
            # the JSON stays incomplete, so that a call without some of its arguments is not run
            self._end_call(out)
            return at, True
        if not self._key or self._key in self._seen:
            self._state = BODY
            return max(at, end), True
        self._types = self._parameters.get_types(self._key)
        if self._tags.type_attribute and (declared_type := _read_attribute(attributes, self._tags.type_attribute)):
            self._types = TEXT if declared_type == "true" else self._types - TEXT
        self._state = GAP
        end += len(self._tags.key_end)
        return end if self._tags.value else self._start_value(end), True

    def _read_gap(self, text: str, at: int) -> tuple[int, bool]:
        begin = skip_space(text, at)
        if text.startswith(self._tags.value, begin):
            return self._start_value(begin + len(self._tags.value)), True
        if begin == len(text) or _is_prefix(self._tags.value, text, begin):
            return begin, False
        self._state = BODY
        return begin, True

    # Value.

    def _start_value(self, at: int) -> int:
        self._pending_name = ("," if self._seen else "{") + to_json_string(self._key) + ":"
        self._seen.add(self._key)
        self._value, self._state = None, VALUE
        return at

    def _read_value(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        position, marker = self._finders.value.find_next(text, at)
        tags = self._tags
        if not marker and self._value is None and len(text) - at < MAX_BUFFERED:
            return at, False  # most values are short
        if self._value is None and marker:
            self._emit(convert_value(text[at:position], self._types, tags.lead, tags.tail), out)
        elif position > at:
            self._value = self._value or TypedValue(self._types, tags.lead, tags.tail)
            self._emit(self._value.feed(text[at:position]), out)
        if not marker:
            return position, False
        if self._value is not None:
            self._emit(self._value.finish(), out)
            self._value = None
        self._state = BODY
        return position + len(marker) * (marker == tags.value_end), True

    def _emit(self, arguments: str, out: list[Piece]) -> None:
        if arguments:
            out.append(CallDelta(self.number, self._pending_name + arguments))
            self._pending_name = ""

    def _finish_call(self, out: list[Piece]) -> None:
        out.append(CallDelta(self.number, "}" if self._seen else "{}"))
        self._end_call(out)

    def _end_call(self, out: list[Piece]) -> None:
        super()._end_call(out)
        self._state = FINISHED


@cache
def _make_finders(frame: TagFrame) -> TagFinders:
    tags = frame.tags
    stops = (*frame.openings, *frame.closings, *frame.between, tags.call)  # they end an unclosed call
    value = MarkerFinder(*dict.fromkeys((tags.value_end, tags.key, tags.call_end)))
    return TagFinders(
        MarkerFinder(*dict.fromkeys((tags.key, tags.call_end, *stops))),
        value,
        BufferRule(TAG_RULE.chars, (tags.value_end, tags.call_end)),
        BufferRule(frozenset("<"), (), value.prefixes),
        BufferRule(prefixes=value.prefixes),
    )


def is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH and NON_NAME_CHARS.isdisjoint(name)


def _is_prefix(marker: str, text: str, at: int) -> bool:
    return len(text) - at < len(marker) and marker.startswith(text[at:])


def _split_attributes(content: str) -> tuple[str, str]:
    """Return the name, and the attributes after it if the name is in quotes."""
    content = content.strip()
    if content[:1] in ('"', "'"):
        name, _, attributes = content[1:].partition(content[0])
        return name.strip(), attributes
    return content, ""


def _read_attribute(attributes: str, name: str) -> str:
    """Return the value of an attribute: `true` for `string="true"`."""
    _, found, value = attributes.partition(name + "=")
    return value.strip("\"'").partition('"')[0] if found else ""


class TaggedCalls(DelimitedCalls):
    """The format of the families that write tags."""

    def __init__(self, frame: TagFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, tools)
        self.tags, self._offered_only = frame.tags, frame.offered_only
        self.finders = _make_finders(frame)
        self._pending_rule = self._entry_rule = TAG_RULE

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallReader | None, int]:
        marker = self.tags.call
        if text.startswith(marker, at):
            return TaggedCall(self._call_count, self, not wrapped and self._offered_only), at + len(marker)
        return None, -1 if marker.startswith(text[at : at + len(marker)]) else 0
