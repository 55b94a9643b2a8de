"""Messages of a Harmony answer → deltas, including text without a target and stop strings.

Text without a target is held until its role is known: it is the answer if there is no other candidate, otherwise
reasoning. Only white space is lost.

Stop strings are detected in the answer alone, which is what a client means by them; engines search all output of a
model, including reasoning and headers.
"""

from collections.abc import Sequence
from json import dumps
from typing import Final

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.prompt import Chunk, Json
from antiphon.core.stop_strings import StopStringCutter
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.harmony.header import MessageTarget
from antiphon.parsers.json.repair import JsonRepair
from antiphon.parsers.logprob_alignment import LogprobAligner
from antiphon.protocol.types.parts import Logprob


class StopFilter:
    """Ends one message at a stop string. `include_stop`: the string is part of the answer."""

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        self._cut = StopStringCutter(stops)
        self._include_stop = include_stop
        self._aligner: LogprobAligner | None = None
        self._received = self._emitted = 0  # characters

    @property
    def found(self) -> str:
        """The stop string that ended the message; "" if there is none yet."""
        return self._cut.stop

    def feed(self, text: str, logprobs: Sequence[Logprob], out: list[Delta]) -> None:
        if logprobs or self._aligner is not None:
            self._aligner = self._aligner or LogprobAligner(self._received)
            self._aligner.add_chunk(Chunk(text=text, logprobs=tuple(logprobs)))
        self._received += len(text)
        released = self._cut.feed(text)
        self._emit(released + self._cut.stop if self._include_stop else released, out)

    def finish(self, out: list[Delta]) -> None:
        """Release the held text: it was not a stop string."""
        self._emit(self._cut.finish(), out)

    def _emit(self, text: str, out: list[Delta]) -> None:
        if text:
            begin, self._emitted = self._emitted, self._emitted + len(text)
            out.append(
                Text(text, () if self._aligner is None else self._aligner.take_overlapping(begin, self._emitted))
            )


EMPTY_OBJECT: Final = "{}"

DeltaType = type[Text] | type[ReasoningDelta] | type[CallDelta]
_DELTA_TYPES: Final[dict[str, DeltaType]] = {"text": Text, "thought": ReasoningDelta, "call": CallDelta}


class HarmonyMessages:
    """Converts the messages of one answer to deltas."""

    def __init__(self, options: ParserOptions) -> None:
        self._tools = options.tools
        self._options = options
        self._stop_filter: StopFilter | None = None  # active while an answer is open
        self.stop_string = ""  # stop string that ended the answer
        self._target: MessageTarget | None = None  # target of the open message
        self._has_content = False  # the open message has content
        self._call_count = 0
        self._arguments: CallArguments | None = None
        self._unaddressed: list[str] = []
        self._had_message = False  # there was a message
        self.answered = False  # there was a final message or a call

    @property
    def is_open(self) -> bool:
        return self._target is not None

    @property
    def delta_type(self) -> DeltaType | None:
        """Type of the delta for the next piece of the open message, if it maps to a single delta."""
        return _DELTA_TYPES.get(self._target.kind) if self._target is not None and self._has_content else None

    def begin_message(self, target: MessageTarget, out: list[Delta]) -> None:
        if target.kind != "unknown":
            self._flush_unaddressed(False, out)
        self._target, self._has_content = target, False
        if target.kind == "call":
            self._call_count += 1
            self._arguments = CallArguments(self._tools.get(target.name))
            out.append(CallStarted(self._call_count - 1, target.name))

    def add_text(self, text: str, logprobs: Sequence[Logprob], out: list[Delta]) -> None:
        target = self._target
        if self.stop_string:
            return
        if target is None or target.kind == "unknown":
            self._unaddressed.append(text)
            return
        if target.kind == "call":
            self._has_content = True
            out += self.add_arguments(text)
            return
        if not self._has_content:
            self._has_content = self._had_message = True
            if target.phase is not None:
                out.append(Break(target.phase))
                self.answered = self.answered or target.phase == "final_answer"
            if target.phase == "final_answer" and self._options.stop:
                self._stop_filter = StopFilter(self._options.stop, self._options.include_stop)
        if self._stop_filter is not None:
            self._stop_filter.feed(text, logprobs, out)
            self.stop_string = self._stop_filter.found
        else:
            out.append(Text(text, tuple(logprobs)) if target.kind == "text" else ReasoningDelta(text))

    def add_arguments(self, text: str) -> Sequence[Delta]:
        """Add text to the arguments of the open call."""
        assert self._arguments is not None
        arguments = self._arguments.feed(text)
        return (CallDelta(self._call_count - 1, arguments),) if arguments else ()

    def end_message(self, out: list[Delta], last: bool = False, truncated: bool = False) -> None:
        """End the open message. `last`: the output has ended; `truncated`: it ended too early."""
        target, self._target = self._target, None
        if target is None:
            return
        if self._stop_filter is not None:
            self._stop_filter.finish(out)
            self._stop_filter = None
        if target.kind == "call":
            assert self._arguments is not None
            if not truncated and (text := self._arguments.finish()):
                out.append(CallDelta(self._call_count - 1, text))
            out.append(CallDone(self._call_count - 1))
            self.answered = True
        elif self._has_content and not last:
            out.append(Break())

    def end_answer(self, out: list[Delta]) -> bool:
        """Handle the model's end of the answer; returns whether there was an answer."""
        if self.answered or self._unaddressed:
            self.finish(out)
        return self.answered

    def finish(self, out: list[Delta]) -> None:
        self._flush_unaddressed(not self.answered, out)

    def _flush_unaddressed(self, is_answer: bool, out: list[Delta]) -> None:
        """Emit the text without a target as answer or reasoning."""
        text = "".join(self._unaddressed)
        self._unaddressed.clear()
        if not text or (text.isspace() and (self.answered or self._had_message)):
            return
        if is_answer:
            out.append(Break("final_answer"))
            self._add_answer(text, out)
            self.answered = True
        else:
            out += (ReasoningDelta(text), Break())

    def _add_answer(self, text: str, out: list[Delta]) -> None:
        """Emit a complete answer that was held back."""
        stop_filter = StopFilter(self._options.stop, self._options.include_stop)
        stop_filter.feed(text, (), out)
        stop_filter.finish(out)
        self.stop_string = stop_filter.found


class CallArguments:
    """Arguments of one call: JSON, repaired if necessary. A tool that takes text also accepts plain text.

    Arguments of a tool without a schema pass unchanged.
    """

    def __init__(self, schema: Json | None) -> None:
        self._schema = schema
        self._leading_space = ""  # white space before the arguments
        self._begun = False
        self._repair: JsonRepair | None = None
        self._wraps_text = False

    def feed(self, text: str) -> str:
        if not self._begun:
            text = self._leading_space + text
            if not text or text.isspace():
                self._leading_space = text
                return ""
            return self._begin(text)
        if self._repair is not None:
            return self._feed_repair(self._repair, text)
        return dumps(text, ensure_ascii=False)[1:-1] if self._wraps_text else text

    def _feed_repair(self, repair: JsonRepair, text: str) -> str:
        repaired, at = repair.feed(text)
        if repair.is_broken:
            self._repair = None  # cannot be repaired; passes unchanged from here on
            return repaired + repair.release_pending() + text[at:]
        return repaired

    def finish(self) -> str:
        if not self._begun:
            return EMPTY_OBJECT if self._schema is not None else self._leading_space
        if self._repair is not None:
            return self._repair.finish()
        return '"}' if self._wraps_text else ""

    def _begin(self, text: str) -> str:
        self._begun = True
        if self._schema is None:
            return text
        if text.lstrip().startswith("{"):
            self._repair = JsonRepair()
            return self._feed_repair(self._repair, text)
        self._wraps_text = _takes_plain_text(self._schema)
        return '{"input": "' + dumps(text, ensure_ascii=False)[1:-1] if self._wraps_text else text


def _takes_plain_text(schema: Json) -> bool:
    """Return whether this is a custom tool, which is offered as a function with one text parameter."""
    properties = schema.get("function", {}).get("parameters", {}).get("properties", {})
    return isinstance(properties, dict) and list(properties) == ["input"]
