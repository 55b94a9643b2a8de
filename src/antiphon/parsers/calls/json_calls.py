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

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Grammar, Json
from antiphon.parsers.calls.base import CallKeys, GrammarRequest, HeadParser, JsonFrame, Piece
from antiphon.parsers.calls.delimited_calls import (
    ArgumentStream,
    BufferRule,
    CallParser,
    DelimitedCalls,
    MarkerFinder,
    MarkerSearch,
)
from antiphon.parsers.calls.grammar import write_grammar
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


class ArgumentsReader:
    """Reads the arguments of one call, as an object or as a string of JSON."""

    def __init__(self) -> None:
        self._value: JsonRepair | _QuotedArguments | None = None
        self._has_output = False
        self.stream: ArgumentStream | None = None  # set once the arguments have begun; all its output belongs to them

    @property
    def is_done(self) -> bool:
        return self._value is not None and self._value.is_done

    @property
    def is_broken(self) -> bool:
        return self._value is not None and self._value.is_broken

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """Return the JSON that this adds and the position reached: the end, after the arguments, or the error."""
        if self._value is None:
            self._value = _QuotedArguments(text[at]) if text[at] in "\"'" else JsonRepair()
            at += isinstance(self._value, _QuotedArguments)
        output, at = self._value.feed(text, at)
        if not self._has_output:
            output = self._normalise_first(output)
        return output, at

    def finish(self) -> str:
        """Return the JSON that completes the arguments."""
        return self._normalise_first(self._value.finish()) if self._value is not None else NO_ARGUMENTS

    def release_pending(self) -> str:
        return self._value.release_pending() if self._value is not None else ""

    def _normalise_first(self, output: str) -> str:
        if output == "null" or not (output or self._has_output or not self.is_done):
            output = NO_ARGUMENTS
        self._has_output = self._has_output or bool(output)
        if self._has_output:
            self.stream = self._value
        return output


class _QuotedArguments:
    """Reads a string, starting after its opening quote, and returns the JSON object in it or the string itself."""

    def __init__(self, quote: str) -> None:
        self._string = JsonStringRepair()
        self._string.quote = quote
        self._unquoter = JsonStringDecoder()
        self._undecided: list[str] = []  # input before the content is known; only whitespace so far
        self._repair: JsonRepair | None = None
        self._verbatim = False  # the content cannot be repaired
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
        return self._repair is not None and self._repair.can_wait and not self._verbatim

    def can_pass(self, text: str) -> bool:
        """Text that may pass through a string may also pass through a string within a string."""
        if self._repair is None or self._verbatim or self._unquoter.is_waiting or not self._string.is_plain:
            return False
        return self._repair.can_pass(text)

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
        self.is_done = True
        return self._consume("".join(inside)) + self._close(), at

    def finish(self) -> str:
        self.is_done = True
        return self._close()

    def release_pending(self) -> str:
        self.is_done = True
        return "".join(self._undecided)

    def _consume(self, inside: str) -> str:
        if self._is_plain_string or not inside:
            return inside
        text = self._unquoter.feed(inside)
        if self._repair is not None:
            return self._feed_repair(self._repair, text)
        self._undecided.append(inside)
        if not (content := text.lstrip(WHITESPACE)):
            return ""
        raw = "".join(self._undecided)
        self._undecided.clear()
        if content[0] == "{":
            self._repair = JsonRepair()
            return self._feed_repair(self._repair, content)
        self._is_plain_string = True
        return '"' + raw

    def _feed_repair(self, repair: JsonRepair, text: str) -> str:
        if self._verbatim:
            return text
        output, at = repair.feed(text)
        if repair.is_broken:
            self._verbatim = True
            output += repair.release_pending() + text[at:]
        return output

    def _close(self) -> str:
        if self._is_plain_string:
            return '"'
        return self._repair.finish() if self._repair is not None and not self._verbatim else ""


class JsonCall:
    """Common part of the parsers.

    `allowed_names`: a call of any other name is not a call; None allows every name. `end_markers`: the markers that may
    end the call.
    """

    def __init__(self, number: int, allowed_names: Container[str] | None, end_markers: MarkerFinder) -> None:
        self.number = number
        self._allowed_names = allowed_names
        self._end_markers = end_markers
        self._arguments = ArgumentsReader()
        self._verbatim = False  # the arguments cannot be repaired
        self._early_arguments: list[str] = []  # arguments that came before the name
        self._has_arguments = False  # the call has arguments
        self.name: str | None = None
        self.started = False
        self.finished = False
        self.rejected = False

    def finish(self, pending: str, out: list[Piece]) -> str:
        """Complete the call at the end of the output. Called only if the call has started."""
        if self._verbatim:
            self._emit_arguments(pending, out)
        elif not self._arguments.is_done:
            self._emit_arguments(self._arguments.finish(), out)
        self._finish_call(out)
        return ""

    @property
    def argument_stream(self) -> ArgumentStream | None:
        """The receiver of the open arguments, if they have begun and continue; all its output belongs to them."""
        stream = self._arguments.stream
        return None if stream is None or stream.is_finished or self._verbatim or not self.started else stream

    def feed_string(self, text: str) -> str:
        """Return "": `JsonCalls` feeds `argument_stream` directly."""
        return ""

    def _accept_name(self, name: object) -> bool:
        """Set the name if it is valid and allowed; otherwise reject the call."""
        if not isinstance(name, str) or not self._is_name(name):
            self.rejected = True
            return False
        self.name = name
        return True

    def _is_name(self, name: str) -> bool:
        return (
            0 < len(name) <= MAX_NAME_LENGTH
            and name.isprintable()
            and (self._allowed_names is None or name in self._allowed_names)
        )

    def end_arguments(self) -> None:
        """Called when the arguments were completed through `argument_stream`."""

    def _start_call(self, out: list[Piece]) -> None:
        if self.name is None:
            return
        self.started = True
        out.append(CallStarted(self.number, self.name))
        if self._early_arguments:
            self._emit_arguments("".join(self._early_arguments), out)

    def _read_arguments(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        """Return the position reached and whether parsing continues there."""
        arguments = self._arguments
        if self._verbatim or arguments.is_broken:
            return self._emit_verbatim(text, at, out)
        output, at = arguments.feed(text, at)
        if output:
            self._emit_arguments(output, out)
        if arguments.is_broken:
            return self._emit_verbatim(text, at, out)
        return at, True

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
        position, marker = self._end_markers.search(text).find_next(at)
        if not self._verbatim:
            if position == at < len(text):
                if marker:
                    self._emit_arguments(self._arguments.finish(), out)
                    self._finish_call(out)
                return at, bool(marker)
            self._verbatim = True
            self._emit_arguments(self._arguments.release_pending(), out)
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
        out.append(CallDone(self.number))
        self.finished = True


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
        self._head_parts: list[str] = []
        self._head_length = 0

    def feed(self, text: str, at: int, out: list[Piece]) -> tuple[int, bool]:
        if not self.started:
            at = self._read_head(text, at, out)
        if not self.started or at == len(text):
            return at, True
        at, more = self._read_arguments(text, at, out)
        if self._arguments.is_done and not (self._verbatim or self.finished):
            self._finish_call(out)
        return at, more

    def get_buffer_rule(self) -> BufferRule:
        return _NO_BUFFERING if self.started else _HEAD_RULE

    def _read_head(self, text: str, at: int, out: list[Piece]) -> int:
        brace = text.find("{", at, at + MAX_HEAD_LENGTH)
        end = brace if brace >= 0 else min(len(text), at + MAX_HEAD_LENGTH)
        self._head_parts.append(text[at:end])
        self._head_length += end - at
        if self._head_length >= MAX_HEAD_LENGTH:
            self.rejected = True
        elif brace >= 0 and self._accept_name(self._parse_head("".join(self._head_parts))):
            self._start_call(out)
        return end


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
                if self._arguments.is_done and not self._verbatim:
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
        """Called when the arguments were completed through `argument_stream`."""
        self._state = KEY

    def _read_punctuation(self, text: str, at: int, out: list[Piece]) -> int:
        char, state = text[at], self._state
        if state is KEY:
            if char == '"' or char == "'":
                self._value_reader = JsonRepair()
                return at
            if char == "}":
                self._close_object(out)
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

    def _close_object(self, out: list[Piece]) -> None:
        if self._depth:
            self._depth -= 1
        else:
            self._finish_call(out)

    def _read_value(self, text: str, at: int, out: list[Piece]) -> int:
        if text[at] == "{" and self._key in self._keys.wrappers:
            self._depth += 1
            self._state = KEY
            return at + 1
        if self._is_arguments_key():
            self._state = ARGUMENTS
            self._has_arguments = True
            self._start_call(out)
            return at
        self._value_reader = JsonRepair()
        return at

    def _is_arguments_key(self) -> bool:
        return not self._has_arguments and (self._keys.name_is_key or self._key in self._keys.arguments)

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
        if self._keys.name_is_key:
            self._accept_key(out)
        elif self._allowed_names is not None and not self.started:
            self.rejected = not self._is_call_key(self._key)
        self._plausible = True

    def _is_call_key(self, key: str) -> bool:
        """Whether a call with a restricted set of names may have this key."""
        keys = self._keys
        if keys.name_is_key:
            return self._allowed_names is None or key in self._allowed_names
        return key in keys.name or key in keys.arguments or key in keys.wrappers or key in OTHER_KEYS

    def _accept_key(self, out: list[Piece]) -> None:
        if self.name is None:
            self._accept_name(self._key)
        else:
            self._reject(out)

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
    """The CallFormat of the families that write JSON."""

    def __init__(self, frame: JsonFrame, tools: Mapping[str, Json]) -> None:
        super().__init__(frame, frame.unmarked)
        self._frame = frame
        self._entry_rule = _ENTRY_RULE
        self._may_have_head = False  # a call with a head may begin here
        self._allowed_names = tools if frame.unmarked else None
        self._has_bracket_marker = any(marker[0] in LIST_FILLER for marker in self._inside_markers)

    def build_grammar(self, request: GrammarRequest) -> Grammar | None:
        """Return the grammar. Free text with calls has none if the marker is a control token, which text rules cannot
        match.
        """
        shape = self._frame.shape
        if shape is None or (request.answer == "text" and shape.marker in self.controls):
            return None
        return write_grammar(shape, request)

    def _feed_stream(self, stream: ArgumentStream, text: str) -> Sequence[Piece]:
        self._pending = ""
        number = self._call_count
        if stream.can_pass(text):
            self._consumed += len(text)
            return (CallDelta(number, text),) if text else ()
        output, at = stream.feed(text)
        if at == len(text) and not stream.is_finished:
            self._consumed += at
            self._rule = _VALUE_RULE if stream.can_wait else _NO_BUFFERING
            return (CallDelta(number, output),) if output else ()
        out: list[Piece] = [CallDelta(number, output)] if output else []
        self._argument_stream = None
        if stream.is_done and isinstance(self._call, JsonCall):
            self._call.end_arguments()
        self._parse(text, out, at)
        return out

    def _update_rule(self) -> None:
        super()._update_rule()
        if isinstance(self._call, JsonCall) and (stream := self._call.argument_stream) is not None:
            self._argument_stream = stream
            self._rule = _VALUE_RULE if stream.can_wait else _NO_BUFFERING

    def _parse_outside(self, text: str, at: int, search: MarkerSearch, out: list[Piece]) -> tuple[int, bool]:
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
        return super()._parse_outside(text, at, search, out)

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

    def _start_call(self, text: str, at: int, wrapped: bool) -> tuple[CallParser | None, int]:
        frame = self._frame
        if text[at] == "{":
            self._may_have_head = False
            allowed_names = None if wrapped and frame.fence else self._allowed_names
            return ObjectCall(self._call_count, allowed_names, self._inside_finder, frame.keys), at
        if frame.parse_head is not None and self._may_have_head and not self._inside_finder.is_prefix(text, at):
            self._may_have_head = False
            return HeadCall(self._call_count, self._allowed_names, self._inside_finder, frame.parse_head), at
        return None, at
