"""Base class for formats that write calls between markers; each family defines how a call begins and is parsed.

    OUTSIDE ──opening──▶ INSIDE ──(a call begins)──▶ (a call) ──▶ INSIDE ──closing──▶ OUTSIDE
                           └──anything else──▶ OUTSIDE: without a call, everything since the opening was text

After a bounded number of openings without a call the remaining answer is treated as text, so the time per answer is
bounded. Most tokens of a call, such as parts of a marker, a name or a tag, decide nothing by themselves: they are
buffered and parsed together with the token that does.

A possible prefix of a marker at the end of the text is not reported as text, because more may follow.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from antiphon.core.deltas import CallDelta, CallDone
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import CallFrame, Piece, TextPiece
from antiphon.parsers.json_repair import skip_space


class MarkerFinder:
    """Finds any of a fixed set of markers."""

    def __init__(self, *markers: str) -> None:
        """No marker may be a prefix of another: the decision would depend on text that may arrive later."""
        if any(one != other and other.startswith(one) for one in markers for other in markers) or "" in markers:
            raise ValueError(f"ambiguous marks: {markers}")
        self._pattern = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self._max_length = max(map(len, markers), default=0)
        self.first_chars = frozenset(marker[0] for marker in markers)
        self.prefixes = frozenset(marker[:end] for marker in markers for end in range(1, len(marker)))
        self.prefixes_and_markers = self.prefixes.union(markers)
        self.min_length = min(map(len, markers), default=0)

    def may_occur_in(self, text: str) -> bool:
        """Quick check whether a marker, or the beginning of one, may occur in the text."""
        return not self.first_chars.isdisjoint(text)

    def find_next(self, text: str, at: int) -> tuple[int, str]:
        """Return position and text of the next marker; else the position of a partial one, or the end, and ""."""
        found = self._pattern.search(text, at)
        return (max(at, self.find_partial(text)), "") if found is None else (found.start(), found[0])

    def is_prefix(self, text: str, at: int) -> bool:
        """Return whether the text from `at` to its end is a proper prefix of a marker."""
        return len(text) - at < self._max_length and text[at:] in self.prefixes

    def find_partial(self, text: str) -> int:
        """Return where a partial marker at the end of the text begins; the length of the text if there is none."""
        begin = max(0, len(text) - self._max_length + 1)
        tail = text[begin:]
        if not self.first_chars.isdisjoint(tail):
            for at, char in enumerate(tail):
                if char in self.first_chars and tail[at:] in self.prefixes:
                    return begin + at
        return len(text)


MAX_CALLS: Final = 64
MAX_FAILURES: Final = 128
MAX_IDLE_MARKERS: Final = 8  # consecutive markers without a call
MAX_BUFFERED: Final = 64  # characters that are buffered at most
MAX_VALUES: Final = 320  # per answer, for formats that do not write JSON; plain numbers in a list do not count


class BufferRule(NamedTuple):
    """Condition under which input is buffered instead of parsed.

    Text is buffered if it has none of `chars` (None: no text is), or if the buffer has none of `ends`. A buffer that
    equals one of `prefixes` is kept as well.
    """

    chars: frozenset[str] | None = None
    ends: tuple[str, ...] = ()
    prefixes: frozenset[str] = frozenset()


class ValueBudget:
    """Limits the number of values in one answer."""

    def __init__(self) -> None:
        self.remaining = MAX_VALUES

    def take(self) -> bool:
        """Count one more value. Returns False once the budget is used up."""
        self.remaining -= 1
        return self.remaining > 0


class CallReader:
    """Base class of the readers of one call. `rejected` means that the text is not a call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = self.finished = self.rejected = False

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Return the position reached and whether parsing continues there; else the rest comes with more text."""
        raise NotImplementedError

    def finish(self, pending: str, out: list[Piece]) -> str:
        """Complete the call at the end of the output. Returns the pending text that is not part of the call."""
        raise NotImplementedError

    def get_buffer_rule(self) -> BufferRule:
        """Return the buffering rule for the current state."""
        raise NotImplementedError

    def feed_string(self, text: str) -> str:
        """Return the JSON that this text adds to the open string; "" if the text must go through `feed`."""
        return ""

    def _emit(self, arguments: str, out: list[Piece]) -> None:
        if arguments:
            out.append(CallDelta(self.number, arguments))

    def _end_call(self, out: list[Piece]) -> None:
        out.append(CallDone(self.number))
        self.finished = True


class DelimitedCalls:
    """Splits an answer into text and calls.

    `openings` are the texts that a call begins with; they end reasoning that was not closed. `controls` are the markers
    that are control tokens in the models; engines strip them unless configured otherwise.
    """

    def __init__(self, frame: CallFrame, tools: Mapping[str, Json]) -> None:
        """`tools`: the schemas of the offered tools by name."""
        self.tools = tools
        self._openings, self._closings = frame.openings, frame.closings
        openings = frame.openings + frame.unwrapped_starts
        self.openings = tuple([marker for marker in openings if not marker.startswith("```")])  # a fence may be text
        self.controls = frame.controls
        self._outside_finder, self._inside_finder, self._inside_markers = _make_finders(frame)
        self._first_chars = self._outside_finder.first_chars
        self._outside_rule = BufferRule(prefixes=self._outside_finder.prefixes_and_markers)
        self._inside_rule = BufferRule(prefixes=self._inside_finder.prefixes_and_markers)
        self._pending_rule = self._inside_rule  # inside, while text is pending
        # for the first call, after an opening or, at the start of the answer, an entry marker
        self._entry_rule = self._outside_rule
        self._entry_markers: tuple[str, ...] = ()
        self._consumed = 0  # characters before the pending text
        self._pending = ""
        self._busy = frame.unmarked  # the state is not plain text with nothing pending
        self._rule = self._outside_rule
        self._is_streaming = False  # the arguments of the open call are fed to their reader directly
        self._is_inside = False
        self._at_start = frame.unmarked  # only whitespace so far, and the family depends on it
        self._is_wrapped = False  # by an opening marker
        self._has_called = False  # a call was parsed since the opening
        self._uncommitted: list[str] = []  # input since the opening that becomes text if no call follows
        self._idle_markers = 0  # markers since the opening or the last call
        self._call: CallReader | None = None
        self._call_count = 0
        self._failures = 0
        self.budget = ValueBudget()
        self._text_only = False  # all further input is text

    def feed(self, text: str) -> Sequence[Piece]:
        if not self._busy and (self._text_only or self._first_chars.isdisjoint(text)):
            self._consumed += len(text)
            return (TextPiece(text, self._consumed),) if text else ()
        (chars, ends, prefixes), pending, call = self._rule, self._pending, self._call
        if (
            chars is not None
            and len(pending) < MAX_BUFFERED
            and (chars.isdisjoint(text) or _lacks_all(ends, pending + text))
        ):
            self._pending += text
            return ()
        if pending:
            text = pending + text
        if self._is_streaming:
            return self._feed_stream(text)
        if call is not None and not pending and (output := call.feed_string(text)):
            self._consumed += len(text)
            return (CallDelta(call.number, output),)
        if text in prefixes:
            self._pending, self._busy = text, True
            return ()
        if not self._is_inside:
            if len(text) < self._outside_finder.min_length and not self._at_start:
                return self._hold_back(text)
            entry_markers = self._entry_markers if self._at_start else self._openings
            if self._rule is not self._entry_rule and len(text) < MAX_BUFFERED and text.startswith(entry_markers):
                self._pending, self._busy, self._rule = text, True, self._entry_rule
                return ()
        out: list[Piece] = []
        self._parse(text, out)
        return out

    def finish(self) -> Sequence[Piece]:
        """End the answer. A truncated call is completed with the arguments received so far."""
        out: list[Piece] = []
        if self._pending:
            self._parse(self._pending, out)  # it may have been buffered without being parsed
        pending, self._pending = self._pending, ""
        self._consumed += len(pending)
        call = self._call
        if call is not None and call.started:
            pending = call.finish(pending, out)
            self._uncommitted.clear()
        elif self._has_called and self._is_inside and self._inside_finder.is_prefix(pending, 0):
            pending = ""  # a truncated marker after a call
        self._uncommitted.append(pending)
        self._is_inside, self._call = False, None
        self._emit_uncommitted(0, out)
        return out

    # Hooks of the families.

    def _feed_stream(self, text: str) -> Sequence[Piece]:
        """Feed text to the open arguments. Runs for most tokens, since calls consist mostly of arguments."""
        raise NotImplementedError

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallReader | None, int]:
        """Return the parser of the call that begins here and the position after its start.

        Without a call the parser is None, and the position is -1 if the rest of the text may begin a call.
        """
        raise NotImplementedError

    # Parsing.

    def _hold_back(self, text: str) -> Sequence[Piece]:
        """Handle text that is too short to contain a marker but may end with the beginning of one."""
        end = self._outside_finder.find_partial(text)
        self._pending = text[end:]
        self._consumed += end
        self._update_rule()
        return (TextPiece(text[:end], self._consumed),) if end else ()

    def _parse(self, text: str, out: list[Piece], at: int = 0) -> None:
        more = True
        while more and at < len(text):
            if self._call is not None:
                at, more = self._feed_call(self._call, text, at, out)
            elif self._is_inside:
                at, more = self._parse_inside(text, at, out)
            else:
                at, more = self._parse_outside(text, at, out)
        self._pending = text[at:]
        self._consumed += at
        self._update_rule()

    def _update_rule(self) -> None:
        """Set the buffering rule for the current state."""
        if self._call is not None:
            self._busy = True
            self._rule = self._call.get_buffer_rule()
        elif self._is_inside:
            self._busy = True
            self._rule = self._pending_rule if self._pending else self._inside_rule
        else:
            self._busy = self._at_start or bool(self._pending)
            self._rule = self._outside_rule

    def _parse_outside(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        position, marker = (len(text), "") if self._text_only else self._outside_finder.find_next(text, at)
        if position > at:
            self._emit_text(text[at:position], position, out)
        if not marker:
            return position, False
        self._enter(marker in self._openings)
        if self._is_wrapped:
            self._uncommitted.append(marker)
            position += len(marker)
        return position, True

    def _enter(self, wrapped: bool) -> None:
        self._is_inside, self._is_wrapped, self._has_called, self._idle_markers = True, wrapped, False, 0

    def _parse_inside(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Parse the text before or after a call, inside the frame."""
        begin = self._skip_filler(text, at)
        if begin == len(text):
            return begin, False
        if marker := self._find_marker_at(text, begin):
            return self._pass_marker(marker, begin, out), True
        call, position = self._start_call(text, begin, self._is_wrapped)
        if call is not None:
            self._uncommitted.append(text[begin:position])
            self._call = call
            return position, True
        if position < 0 or self._inside_finder.is_prefix(text, begin):
            return begin, False
        self._leave(begin, out)
        return begin, True

    def _skip_filler(self, text: str, at: int) -> int:
        """Skip filler between calls; it becomes text again if text follows."""
        end = skip_space(text, at)
        self._uncommitted.append(text[at:end])
        return end

    def _find_marker_at(self, text: str, at: int) -> str:
        for marker in self._inside_markers:
            if text.startswith(marker, at):
                return marker
        return ""

    def _pass_marker(self, marker: str, at: int, out: list[Piece]) -> int:
        end = at + len(marker)
        if self._has_called:
            self._uncommitted.clear()
        else:
            self._uncommitted.append(marker)
        self._idle_markers += 1
        if marker in self._closings or self._idle_markers > MAX_IDLE_MARKERS:
            self._leave(end, out)
        elif marker in self._openings:
            self._is_wrapped = True
        return end

    def _leave(self, position: int, out: list[Piece]) -> None:
        self._is_inside = False
        if not self._has_called or self._idle_markers > MAX_IDLE_MARKERS:
            self._count_failure()
        self._emit_uncommitted(position, out)

    def _feed_call(self, call: CallReader, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        end, more = call.feed(text, at, out)
        if not call.started:
            self._uncommitted.append(text[at:end])
        if call.rejected:
            self._call, self._is_inside = None, False
            self._count_failure()
            self._emit_uncommitted(end, out)
        elif call.finished:
            self._call, self._has_called, self._idle_markers = None, True, 0
            self._uncommitted.clear()
            self._call_count += 1
            self._text_only = self._call_count >= MAX_CALLS or self.budget.remaining <= 0
            self._is_inside = not self._text_only
        return end, more or call.rejected or call.finished

    def _count_failure(self) -> None:
        self._failures += 1
        self._text_only = self._text_only or self._failures >= MAX_FAILURES or self.budget.remaining <= 0

    def _emit_uncommitted(self, position: int, out: list[Piece]) -> None:
        self._emit_text("".join(self._uncommitted), position, out)
        self._uncommitted.clear()

    def _emit_text(self, text: str, position: int, out: list[Piece]) -> None:
        if text:
            out.append(TextPiece(text, self._consumed + position))


@cache
def _make_finders(frame: CallFrame) -> tuple[MarkerFinder, MarkerFinder, tuple[str, ...]]:
    """Return the finders for markers outside and inside a frame, and those inside, where closings take precedence."""
    ends = (*frame.closings, *frame.between)
    markers = (*[marker for marker in frame.openings if not marker.startswith(ends)], *ends)
    return MarkerFinder(*frame.openings, *frame.unwrapped_starts), MarkerFinder(*markers), markers


def _lacks_all(ends: tuple[str, ...], text: str) -> bool:
    """Return whether there are ends and none of them is in the text."""
    for end in ends:
        if end in text:
            return False
    return bool(ends)
