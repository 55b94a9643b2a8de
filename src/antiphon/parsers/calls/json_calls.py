"""Calls whose arguments are JSON.

`HeadCall`: a head with the name, then a JSON object. A function of the family extracts the name from the head.

`ObjectCall`: a JSON object {"name": …, "arguments": {…}}, with its keys in any order, in chunks of any size:

    BEGIN ─{─▶ KEY ─"…"─▶ COLON ─:─▶ VALUE ─▶ KEY … ─}─▶ finished
      └──anything else, or an object without an allowed name: `rejected`

A call starts as soon as its name is known and its arguments begin; the arguments are streamed. Arguments that cannot be
repaired are emitted unchanged up to the next marker, so that the reader sees the error. Arguments that a marker cuts
off are completed.
"""

import json
import re
from collections.abc import Container, Mapping, Sequence
from enum import IntEnum
from typing import Final

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import CallKeys, HeadParser, JsonFrame, Piece
from antiphon.parsers.calls.delimited_calls import BufferRule, CallReader, DelimitedCalls, MarkerFinder
from antiphon.parsers.json_repair import (
    MAX_ESCAPE_REPAIRS,
    WHITESPACE,
    JsonRepair,
    JsonStringDecoder,
    JsonStringRepair,
    match_end,
    skip_whitespace,
)

MAX_NAME_LENGTH: Final = 256
NO_ARGUMENTS: Final = "{}"  # for missing arguments, null and an empty string; a string with other content stays one


class QuotedArguments:
    """Reads a string, starting after its opening quote, and returns the JSON object in it or the string itself."""

    def __init__(self, quote: str) -> None:
        self._string = JsonStringRepair()
        self._string.quote = quote
        self._decoder = JsonStringDecoder()
        self._undecided: list[str] = []  # input before the content is known; only whitespace so far
        self._content: JsonRepair | None = None
        self._is_plain_string = False
        self.is_done = False

    @property
    def is_broken(self) -> bool:
        return self._string.repairs > MAX_ESCAPE_REPAIRS

    @property
    def is_finished(self) -> bool:
        return self.is_done or self.is_broken

    @property
    def can_wait(self) -> bool:
        return self._content is not None and self._content.can_wait and not self._content.is_finished

    def can_pass(self, text: str) -> bool:
        """Text that may pass through a string may also pass through a string within a string."""
        if self._content is None or self._decoder.is_waiting or not self._string.is_plain:
            return False
        return self._content.can_pass(text)

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        if self.is_done:
            return "", at
        inside: list[str] = []
        string, end = self._string, len(text)
        while at < end and string.quote and not self.is_broken:
            at = string.feed(text, at, inside)
        if string.quote:
            return self._consume("".join(inside)), at
        inside.pop()  # the closing quote
        return self._consume("".join(inside)) + self.finish(), at

    def finish(self) -> str:
        self.is_done = True
        if self._is_plain_string:
            return '"'
        return self._content.finish() if self._content is not None else ""

    def release_pending(self) -> str:
        self.is_done = True
        return "".join(self._undecided)

    def _consume(self, inside: str) -> str:
        if self._is_plain_string or not inside:
            return inside
        text = self._decoder.feed(inside)
        if self._content is not None:
            return self._content.feed_or_release(text)
        self._undecided.append(inside)
        if not (content := text.lstrip(WHITESPACE)):
            return ""
        raw = "".join(self._undecided)
        self._undecided.clear()
        if content[0] == "{":
            self._content = JsonRepair()
            return self._content.feed_or_release(content)
        self._is_plain_string = True
        return '"' + raw


ArgumentReader = JsonRepair | QuotedArguments  # of arguments that are an object, or a string of JSON


class JsonCall(CallReader):
    """Common part of the parsers. `allowed_names`: None allows all. `end_markers`: those that may end a call."""

    def __init__(self, number: int, allowed_names: Container[str] | None, end_markers: MarkerFinder) -> None:
        super().__init__(number)
        self._allowed_names = allowed_names
        self._end_markers = end_markers
        self._reader: ArgumentReader | None = None  # set when the arguments begin
        self._has_output = False  # the reader has returned some of the arguments
        self._verbatim = False  # the arguments cannot be repaired
        self._early_arguments: list[str] = []  # arguments that came before the name
        self._has_arguments = False  # the call has arguments
        self.name: str | None = None

    def finish(self, pending: str, out: list[Piece]) -> str:
        """Complete the call at the end of the output. Called only if the call has started."""
        if self._verbatim:
            self._emit_arguments(pending, out)
        elif not self._is_read:
            self._emit_arguments(self._complete_arguments(), out)
        self._finish_call(out)
        return ""

    @property
    def open_reader(self) -> ArgumentReader | None:
        """The reader of the arguments, if they have begun and continue; all its output belongs to them."""
        is_open = self.started and self._has_output and not self._verbatim
        return self._reader if is_open and self._reader is not None and not self._reader.is_finished else None

    @property
    def _is_read(self) -> bool:
        """Whether the arguments have been read completely."""
        return self._reader is not None and self._reader.is_done

    def _accept_name(self, name: object) -> bool:
        """Set the name if it is valid and allowed; otherwise reject the call."""
        is_valid = isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
        if not is_valid or (self._allowed_names is not None and name not in self._allowed_names):
            self.rejected = True
            return False
        self.name = str(name)
        return True

    def end_arguments(self) -> None:
        """Called when the arguments were completed through `open_reader`."""

    def _start_call(self, out: list[Piece]) -> None:
        if self.name is None:
            return
        self.started = True
        out.append(CallStarted(self.number, self.name))
        if self._early_arguments:
            self._emit_arguments("".join(self._early_arguments), out)

    def _read_arguments(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Return the position reached and whether parsing continues there."""
        if (reader := self._reader) is None:
            is_quoted = text[at] in "\"'"
            reader = self._reader = QuotedArguments(text[at]) if is_quoted else JsonRepair()
            at += is_quoted
        if not (self._verbatim or reader.is_broken):
            output, at = reader.feed(text, at)
            if output := self._normalise_first(output):
                self._emit_arguments(output, out)
        return self._emit_verbatim(text, at, out) if self._verbatim or reader.is_broken else (at, True)

    def _complete_arguments(self) -> str:
        """Return the JSON that completes the arguments."""
        return NO_ARGUMENTS if self._reader is None else self._normalise_first(self._reader.finish())

    def _normalise_first(self, output: str) -> str:
        if not self._has_output:
            if output == "null" or (not output and self._is_read):
                output = NO_ARGUMENTS
            self._has_output = bool(output)
        return output

    def _emit_arguments(self, text: str, out: list[Piece]) -> None:
        self._has_arguments = True
        if not self.started:
            self._early_arguments.append(text)
        elif text:
            out.append(CallDelta(self.number, text))

    def _emit_verbatim(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Emit arguments that cannot be repaired unchanged, up to the next marker."""
        if not self.started:
            self.rejected = True
            return at, True
        position, marker = self._end_markers.find_next(text, at)
        if not self._verbatim:
            if position == at < len(text):
                if marker:
                    self._emit_arguments(self._complete_arguments(), out)
                    self._finish_call(out)
                return at, bool(marker)
            self._verbatim = True
            self._emit_arguments("" if self._reader is None else self._reader.release_pending(), out)
        self._emit_arguments(text[at:position], out)
        if marker:
            self._finish_call(out)
        return position, bool(marker)

    def _finish_call(self, out: list[Piece]) -> None:
        if not self.started:
            self._start_call(out)
        if not self.started:
            self.rejected = True
            return
        if not self._has_arguments:
            self._emit_arguments(NO_ARGUMENTS, out)
        self._end_call(out)


MAX_HEAD_LENGTH: Final = 512
_NO_BUFFERING: Final = BufferRule()
_HEAD_RULE: Final = BufferRule(frozenset("{"))


class HeadCall(JsonCall):
    """Parses a call whose name precedes its arguments."""

    def __init__(
        self, number: int, allowed_names: Container[str] | None, end_markers: MarkerFinder, parse_head: HeadParser
    ) -> None:
        super().__init__(number, allowed_names, end_markers)
        self._parse_head = parse_head

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if not self.started:
            at = self._read_head(text, at, out)
        if not self.started:
            return at, self.rejected
        at, more = self._read_arguments(text, at, out)
        if self._is_read and not (self._verbatim or self.finished):
            self._finish_call(out)
        return at, more

    def get_buffer_rule(self) -> BufferRule:
        return _NO_BUFFERING if self.started else _HEAD_RULE

    def _read_head(self, text: str, at: int, out: list[Piece]) -> int:
        brace = text.find("{", at, at + MAX_HEAD_LENGTH)
        if brace >= 0 and self._accept_name(self._parse_head(text[at:brace])):
            self._start_call(out)
        elif brace < 0 and len(text) - at < MAX_HEAD_LENGTH:
            return at
        self.rejected = not self.started
        return brace if brace >= 0 else at + MAX_HEAD_LENGTH


_OBJECT_RULE: Final = BufferRule(frozenset("{}"))  # until the arguments begin
_KEY_RULE: Final = BufferRule(frozenset("{},:"))
_EARLY_RULE: Final = BufferRule(frozenset("}"))  # arguments before the name, which cannot be emitted yet
OTHER_KEYS: Final = frozenset({"id", "type", "index", "tool_call_id", "call_id"})


class ObjectCallState(IntEnum):
    BEGIN = 0
    KEY = 1
    COLON = 2
    VALUE = 3
    ARGUMENTS = 4


BEGIN, KEY, COLON, VALUE, ARGUMENTS = ObjectCallState  # module globals: faster to look up on the token path


class ObjectCall(JsonCall):
    """Parses a call that is a JSON object.

    If only some names are allowed, an object with a key that no call has is rejected at that key.
    """

    def __init__(
        self, number: int, allowed_names: Container[str] | None, end_markers: MarkerFinder, keys: CallKeys
    ) -> None:
        super().__init__(number, allowed_names, end_markers)
        self._keys = keys
        self._state = BEGIN
        self._depth = 0  # objects around the one with the name
        self._value_reader: JsonRepair | None = None  # reads a key, or a value other than the arguments
        self._value_parts: list[str] = []
        self._key = ""
        self._plausible = allowed_names is None  # judging by its first key it may be a call

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Return the position reached (the end, after the call, or the error) and whether parsing continues there."""
        end, more = len(text), True
        while more and at < end and not (self.finished or self.rejected):
            if self._state is ARGUMENTS:
                at, more = self._read_arguments(text, at, out)
                if self._is_read and not self._verbatim:
                    self._state = KEY
            elif self._value_reader is not None:
                at = self._continue_value(self._value_reader, text, at, out)
            elif text[at] in WHITESPACE:
                at = skip_whitespace(text, at)
            elif self._state is VALUE:
                at = self._read_value(text, at, out)
            else:
                at = self._read_punctuation(text, at, out)
        return at, more

    def get_buffer_rule(self) -> BufferRule:
        if self._state is ARGUMENTS:
            return _NO_BUFFERING if self.started else _EARLY_RULE
        return _OBJECT_RULE if self._plausible else _KEY_RULE

    def end_arguments(self) -> None:
        """Called when the arguments were completed through `open_reader`."""
        self._state = KEY

    def _read_punctuation(self, text: str, at: int, out: list[Piece]) -> int:
        char, state = text[at], self._state
        if state is KEY:
            if char == '"' or char == "'":
                self._value_reader = JsonRepair()
                return at
            if char == "}" and self._depth:
                self._depth -= 1
            elif char == "}":
                self._finish_call(out)
            elif char != ",":
                self._reject(out)
                return at
        elif state is COLON and char == ":":
            self._state = VALUE
        elif state is BEGIN and char == "{":
            self._state = KEY
        else:
            self._reject(out)
            return at
        return at + 1

    def _read_value(self, text: str, at: int, out: list[Piece]) -> int:
        if text[at] == "{" and self._key in self._keys.wrappers:
            self._depth += 1
            self._state = KEY
            return at + 1
        if not self._has_arguments and (self._keys.name_is_key or self._key in self._keys.arguments):
            self._state = ARGUMENTS
            self._has_arguments = True
            self._start_call(out)
            return at
        self._value_reader = JsonRepair()
        return at

    def _continue_value(self, reader: JsonRepair, text: str, at: int, out: list[Piece]) -> int:
        piece, at = reader.feed(text, at)
        self._value_parts.append(piece)
        if reader.is_broken:
            self._reject(out)
        elif reader.is_done:
            encoded = "".join(self._value_parts)
            value = json.loads(encoded) if "\\" in encoded or encoded[0] != '"' else encoded[1:-1]
            self._value_parts.clear()
            self._value_reader = None
            self._accept_value(value, out)
        return at

    def _accept_value(self, value: object, out: list[Piece]) -> None:
        """Process a key, or a value other than the arguments."""
        if self._state is VALUE:
            self._state = KEY
            if self._key in self._keys.name and self.name is None and self._accept_name(value) and self._has_arguments:
                self._start_call(out)
            return
        self._key = str(value)
        self._state = COLON
        if self._keys.name_is_key and self.name is not None:
            self._reject(out)
        elif self._keys.name_is_key:
            self._accept_name(self._key)
        elif self._allowed_names is not None and not self.started:
            keys = self._keys
            self.rejected = self._key not in (*keys.name, *keys.arguments, *keys.wrappers, *OTHER_KEYS)
        self._plausible = True

    def _reject(self, out: list[Piece]) -> None:
        """Handle a syntax error: a call that has started ends here with what it has, otherwise it is rejected."""
        if self.started:
            self._finish_call(out)
        else:
            self.rejected = True


LIST_FILLER: Final = WHITESPACE + ",;[]"  # filler around calls in a list, which is discarded
TRAILING_FILLER: Final = LIST_FILLER + "})"  # superfluous closing brackets are discarded as well
_LEADING: Final = re.compile(f"[{re.escape(LIST_FILLER)}]*")
_TRAILING: Final = re.compile(f"[{re.escape(TRAILING_FILLER)}]*")
_ENTRY_RULE: Final = BufferRule(frozenset("{}"))
_VALUE_RULE: Final = BufferRule(frozenset("}]"))  # until a value may end
_REMOVE_BRACKETS: Final = {ord(char): None for char in TRAILING_FILLER if char not in WHITESPACE}


class JsonCalls(DelimitedCalls):
    """The format of the families that write JSON."""

    def __init__(self, frame: JsonFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, tools)
        self._frame = frame
        self._reader: ArgumentReader | None = None  # of the open arguments
        self._entry_rule = _ENTRY_RULE
        self._may_have_head = False  # a call with a head may begin here
        self._allowed_names = tools if frame.unmarked else None
        self._has_bracket_marker = any(marker[0] in LIST_FILLER for marker in self._inside_markers)

    def _feed_stream(self, text: str) -> Sequence[Piece]:
        self._pending = ""
        number, reader = self._call_count, self._reader
        assert reader is not None
        if reader.can_pass(text):
            self._consumed += len(text)
            return (CallDelta(number, text),) if text else ()
        output, at = reader.feed(text)
        if at == len(text) and not reader.is_finished:
            self._consumed += at
            self._rule = _VALUE_RULE if reader.can_wait else _NO_BUFFERING
            return (CallDelta(number, output),) if output else ()
        out: list[Piece] = [CallDelta(number, output)] if output else []
        self._is_streaming = False
        if reader.is_done and isinstance(self._call, JsonCall):
            self._call.end_arguments()
        self._parse(text, out, at)
        return out

    def _update_rule(self) -> None:
        super()._update_rule()
        if isinstance(self._call, JsonCall) and (reader := self._call.open_reader) is not None:
            self._reader, self._is_streaming = reader, True
            self._rule = _VALUE_RULE if reader.can_wait else _NO_BUFFERING

    def _parse_outside(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if self._at_start:
            begin, at = at, skip_whitespace(text, at)
            self._emit_text(text[begin:at], at, out)
            if at == len(text):
                return at, False
            fence = self._frame.fence
            if fence and fence.startswith(text[at : at + len(fence)]):
                return self._enter_fence(text, at, at + len(fence))
            self._at_start = False
            if text[at] in "{[" and not self._find_marker_at(text, at):
                self._enter(wrapped=False)
                return at, True
        return super()._parse_outside(text, at, out)

    def _enter_fence(self, text: str, at: int, end: int) -> tuple[int, bool]:
        """Enter a fenced answer, or wait if the text may be the beginning of a fence."""
        if end > len(text):
            return at, False
        self._at_start = False
        self._uncommitted.append(text[at:end])
        self._enter(wrapped=False)
        return end, True

    def _enter(self, wrapped: bool) -> None:
        super()._enter(wrapped)
        self._may_have_head = wrapped

    def _skip_filler(self, text: str, at: int) -> int:
        end = match_end(_TRAILING if self._has_called else _LEADING, text, at)
        if (
            self._has_bracket_marker
            and end > at
            and (self._find_marker_at(text, end - 1) or self._inside_finder.is_prefix(text, end - 1))
        ):
            end -= 1  # the bracket begins a marker
        skipped = text[at:end]
        self._uncommitted.append(skipped.translate(_REMOVE_BRACKETS) if self._has_called else skipped)
        return end

    def _pass_marker(self, marker: str, at: int, out: list[Piece]) -> int:
        self._may_have_head = marker in self._openings
        return super()._pass_marker(marker, at, out)

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallReader | None, int]:
        frame = self._frame
        if text[at] == "{":
            self._may_have_head = False
            allowed_names = None if wrapped and frame.fence else self._allowed_names
            return ObjectCall(self._call_count, allowed_names, self._inside_finder, frame.keys), at
        if frame.parse_head is not None and self._may_have_head and not self._inside_finder.is_prefix(text, at):
            self._may_have_head = False
            return HeadCall(self._call_count, self._allowed_names, self._inside_finder, frame.parse_head), at
        return None, at
