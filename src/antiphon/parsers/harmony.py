"""Tokens of gpt-oss → deltas, in one pass. Malformed output raises no error and loses no answer.

    BETWEEN ──<|start|>, text──▶ HEADER ──<|message|>──▶ CONTENT ──<|end|>, <|call|>──▶ BETWEEN
                                   │ (too long, or ended without <|message|>: its text is content)
    CONTENT ──<|channel|>──▶ HEADER (of another message, unless it proves to be none)
    any ──<|return|>, after an answer──▶ OVER (further output is dropped)

The output continues the last header of the prompt. Only control tokens have a meaning: text that looks like one is
text. Text without a target is held until its role is known: it is the answer if there is no other candidate, otherwise
reasoning. Only white space is lost.

Stop strings are detected in the answer alone, which is what a client means by them; engines search all output of a
model, including reasoning and headers.
"""

from collections.abc import Sequence
from enum import IntEnum
from json import dumps
from typing import Final

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.harmony import (
    CHANNEL,
    CONSTRAIN,
    END_OF_TEXT,
    END_TOKENS,
    FIRST_CONTROL,
    MESSAGE,
    RETURN,
    START,
    HarmonyTokenDecoder,
)
from antiphon.core.prompt import Chunk, EngineExtras, Json, Prompt, TokenCounts, TokenPrompt
from antiphon.core.stop_strings import StopStringCutter
from antiphon.parsers.base import DEFAULT_OPTIONS, AnswerEnded, ParserOptions
from antiphon.parsers.harmony_header import HeaderPart, MessageTarget, read_header, resolve_target, salvage_target
from antiphon.parsers.json_repair import JsonRepair
from antiphon.parsers.logprob_alignment import LogprobAligner, pair_logprobs
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
            # a tool without functions, such as python, has no schema: its text is not JSON
            self._arguments = CallArguments(self._tools.get(target.name) or None)
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
        if not is_answer:
            out += (ReasoningDelta(text), Break())
            return
        out.append(Break("final_answer"))
        stop_filter = StopFilter(self._options.stop, self._options.include_stop)
        stop_filter.feed(text, (), out)
        stop_filter.finish(out)
        self.stop_string = stop_filter.found
        self.answered = True


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
            return self._repair.feed_or_release(text)
        return dumps(text, ensure_ascii=False)[1:-1] if self._wraps_text else text

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
            return self._repair.feed_or_release(text)
        self._wraps_text = _takes_plain_text(self._schema)
        return '{"input": "' + dumps(text, ensure_ascii=False)[1:-1] if self._wraps_text else text


def _takes_plain_text(schema: Json) -> bool:
    """Return whether this is a custom tool, which is offered as a function with one text parameter."""
    properties = schema.get("function", {}).get("parameters", {}).get("properties", {})
    return isinstance(properties, dict) and list(properties) == ["input"]


MAX_HEADER_TOKENS: Final = 96  # tokens: twice the length with the longest tool name
MAX_HEADER_CHARACTERS: Final = 1024  # characters, for engines that send no tokens
TRUNCATING_FINISHES: Final = ("length", "content_filter")


class HarmonyState(IntEnum):
    BETWEEN = 0
    HEADER = 1
    CONTENT = 2
    OVER = 3


class HarmonyParser:
    """Parses the output of one gpt-oss model call."""

    def __init__(self, prompt: Prompt, options: ParserOptions = DEFAULT_OPTIONS) -> None:
        self._decoder = HarmonyTokenDecoder()
        self._decode_token = self._decoder.decode
        self._token_texts = self._decoder.token_texts
        self._tools = options.tools
        self._messages = HarmonyMessages(options)
        self._has_stop = bool(options.stop)  # the client set stop strings
        self._output_tokens = 0  # counted only if there are stop strings
        self._prompt_tokens = len(prompt.tokens) if isinstance(prompt, TokenPrompt) else 0
        self._state = HarmonyState.HEADER
        self._header_parts = [HeaderPart(START, "assistant"), HeaderPart(0)]  # of the header being read
        self._header_length = 0  # tokens
        self._pending_text: list[str] = []  # content that is not emitted yet, by token
        self._pending_logprobs: list[Logprob] = []  # of the pending text
        self._in_analysis = False  # the open message is in the analysis channel
        self._delta_type: DeltaType | None = None  # delta type of plain text, if the fast path applies
        self._has_tokens = False  # the engine sends tokens
        self._truncated = False
        self._prompt_deltas: list[Delta] = []  # deltas of a message that the prompt began
        self.reasoning_tokens = 0  # tokens of the analysis channel
        if isinstance(prompt, TokenPrompt):
            self._read_prompt(prompt.tokens)

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        tokens = chunk.tokens
        if (
            (delta_type := self._delta_type) is not None
            and len(tokens) == 1
            and not chunk.logprobs
            and chunk.finish is None
        ):
            text = self._token_texts.get(tokens[0])
            if text:
                if delta_type is CallDelta:
                    return self._messages.add_arguments(text)
                if self._in_analysis:
                    self.reasoning_tokens += 1
                return (delta_type(text),)  # type: ignore[arg-type,call-arg]  # a text or reasoning delta
        return self._feed_slow(chunk)

    def finish(self) -> Sequence[Delta]:
        out, self._prompt_deltas = self._prompt_deltas, []
        if self._state is HarmonyState.OVER:
            return out
        self._flush(out, ends=True)
        if self._state is HarmonyState.HEADER and not (self._truncated and self._header_parts[-1].is_single_word):
            self._abandon_header(END_OF_TEXT, out)
        self._messages.end_message(out, last=True, truncated=self._truncated)
        self._messages.finish(out)
        self._state, self._delta_type = HarmonyState.OVER, None
        return out

    def _feed_slow(self, chunk: Chunk) -> list[Delta]:
        if self._messages.stop_string:
            raise AnswerEnded(self._build_final_chunk(chunk))
        out, self._prompt_deltas = self._prompt_deltas, []
        if chunk.finish in TRUNCATING_FINISHES:
            self._truncated = True
        if chunk.tokens:
            self._has_tokens = True
            self._add_tokens(chunk.tokens, chunk.logprobs, out, chunk.text)
        elif chunk.text and not self._has_tokens:
            self._add_text(chunk.text, out)
            self._flush(out)
        if self._has_stop:
            self._output_tokens += len(chunk.tokens)
            if self._messages.stop_string:  # replaces the engine's own finish reason
                self._state = HarmonyState.OVER
                chunk.finish = chunk.finish and "stop"
            return out
        self._delta_type = (
            self._messages.delta_type if self._state is HarmonyState.CONTENT and not self._decoder.is_partial else None
        )
        return out

    def _build_final_chunk(self, chunk: Chunk) -> Chunk:
        """Build the final chunk of a stopped answer, with the engine's counts if this chunk has them."""
        counts = chunk.counts or TokenCounts(input_tokens=self._prompt_tokens, output_tokens=self._output_tokens)
        return Chunk(finish="stop", counts=counts, extras=EngineExtras(stop_reason=self._messages.stop_string))

    def _add_tokens(
        self, tokens: Sequence[int], logprobs: Sequence[Logprob], out: list[Delta], engine_text: str = ""
    ) -> None:
        """Process tokens. `engine_text`: their text according to the engine."""
        token_logprobs = pair_logprobs([token < FIRST_CONTROL for token in tokens], logprobs) if logprobs else None
        for number, token in enumerate(tokens):
            if token >= FIRST_CONTROL:
                self._flush(out, ends=True)
                self._handle_control(token, out)
                continue
            if (
                token_logprobs is not None
                and self._state is HarmonyState.CONTENT
                and (logprob := token_logprobs[number]) is not None
            ):
                self._pending_logprobs.append(logprob)
            self._add_text(self._decode_token(token, engine_text), out)
        self._flush(out)

    def _add_text(self, text: str, out: list[Delta]) -> None:
        if self._state is HarmonyState.CONTENT:
            self._pending_text.append(text)
        elif self._state is HarmonyState.HEADER:
            part = self._header_parts[-1]
            part.text += text
            self._header_length += 1
            if self._header_length > MAX_HEADER_TOKENS or len(part.text) > MAX_HEADER_CHARACTERS:
                self._abandon_header(None, out)
        elif self._state is HarmonyState.BETWEEN and text:
            self._open_header(HeaderPart(0, text))

    def _flush(self, out: list[Delta], ends: bool = False) -> None:
        """Emit the pending text. `ends`: an incomplete character can no longer be completed."""
        if ends and self._decoder.is_partial:
            self._add_text(self._decoder.finish(), out)
        if self._pending_text and ((text := "".join(self._pending_text)) or ends):
            if text:
                self._messages.add_text(text, self._pending_logprobs, out)
            if self._in_analysis:
                self.reasoning_tokens += len(self._pending_text)
            self._pending_text, self._pending_logprobs = [], []

    def _handle_control(self, token: int, out: list[Delta]) -> None:
        if self._state is HarmonyState.OVER:
            return
        if token in END_TOKENS:
            self._end_message(token, out)
        elif token == START:
            self._end_message(token, out)
            self._open_header(HeaderPart(START))
        elif token == MESSAGE:
            if self._state is not HarmonyState.CONTENT:
                self._end_header(out)
        elif token in (CHANNEL, CONSTRAIN):
            self._continue_header(HeaderPart(token), out)

    def _open_header(self, part: HeaderPart) -> None:
        self._state, self._header_parts, self._header_length = HarmonyState.HEADER, [part], 1

    def _continue_header(self, part: HeaderPart, out: list[Delta]) -> None:
        """Continue a header, or open one within a message whose end may be missing."""
        if self._state is not HarmonyState.HEADER:
            self._open_header(part)
            return
        self._header_parts.append(part)
        self._header_length += 1
        if self._header_length > MAX_HEADER_TOKENS:
            self._abandon_header(None, out)

    def _end_header(self, out: list[Delta]) -> None:
        """Handle <|message|>, the regular end of a header."""
        header = read_header(self._header_parts if self._state is HarmonyState.HEADER else (), True)
        target = resolve_target(header, self._tools)
        if self._messages.is_open and header.channel is None and target.kind != "call":
            self._resume_content(out)
            return
        self._messages.end_message(out)
        self._begin_content(target, "", out)

    def _abandon_header(self, token: int | None, out: list[Delta]) -> None:
        """Handle a header without <|message|>. `token`: the token that came instead; None: the header is too long."""
        header = read_header(self._header_parts, False)
        if self._messages.is_open and not (header.channel and header.content):
            self._resume_content(out)
            return
        self._messages.end_message(out)
        target = salvage_target(header, token, self._tools)
        if header.content or token is None or target.kind == "call":
            self._begin_content(target, header.content, out)

    def _begin_content(self, target: MessageTarget, text: str, out: list[Delta]) -> None:
        self._messages.begin_message(target, out)
        self._state, self._in_analysis = HarmonyState.CONTENT, target.analysis
        if text:
            self._messages.add_text(text, (), out)

    def _resume_content(self, out: list[Delta]) -> None:
        """Continue the open message: the supposed header was none."""
        self._state = HarmonyState.CONTENT
        self._messages.add_text("".join([part.text for part in self._header_parts]), (), out)

    def _end_message(self, token: int, out: list[Delta]) -> None:
        if self._state is HarmonyState.HEADER and any(part.text for part in self._header_parts):
            self._abandon_header(token, out)
        self._messages.end_message(out)
        self._state, self._in_analysis = HarmonyState.BETWEEN, False
        if token in (RETURN, END_OF_TEXT) and self._messages.end_answer(out):
            self._state = HarmonyState.OVER

    def _read_prompt(self, tokens: Sequence[int]) -> None:
        """Process the end of the prompt, usually the header of the model's first message."""
        begin = len(tokens) - 1
        while begin >= 0 and tokens[begin] != START:
            begin -= 1
        if begin >= 0:
            self._add_tokens(tokens[begin:], (), self._prompt_deltas)
            if self._state is HarmonyState.HEADER and self._header_parts[-1].control == START:
                self._header_parts.append(HeaderPart(0))
            self._header_length = 0
