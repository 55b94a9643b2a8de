"""Deltas → events of Anthropic's API, and events → the message as the JSON body. Ids are passed in.

    message_start ─▶ ( block_start ─▶ block_delta* ─▶ block_stop )* ─▶ message_delta ─▶ message_stop
          └─────────────────────── or, at any moment ────────────────▶ error

One block is open at a time, and a closed block is never reopened: of overlapping calls one is sent at a time, and the
others wait until it is done. The input of a call that was not truncated is a JSON object.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import asdict, replace

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    InternalDelta,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.dialects.anthropic_items import sign_thinking
from antiphon.core.dialects.anthropic_request import AnthropicRequest
from antiphon.core.dialects.dialect import Dialect, WireEvents
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.core.truncated_json import parse_object, parse_truncated_object
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.ids import Prefix
from antiphon.protocol.types.anthropic import events as wire
from antiphon.protocol.types.anthropic.events import ContentBlockDelta, InputJsonDelta, TextDelta, ThinkingDelta
from antiphon.protocol.types.anthropic.request import TextBlock, ThinkingBlock, ToolUseBlock

NewId = Callable[[Prefix], str]


class AnthropicEmitter(Dialect):
    def __init__(
        self,
        message: wire.AnthropicMessage,
        request: AnthropicRequest,
        new_id: NewId,
        request_id: str,
        encrypt: Encrypt | None = None,
    ) -> None:
        """`message`: without output. `encrypt` encrypts hidden thinking, so that the client can send it back."""
        self._message = message
        self._request = request
        self._new_id = new_id
        self._request_id = request_id
        self._encrypt = encrypt
        self._index = -1  # of the block that is or was last open
        self._text_open = False  # a text block is open
        self._thinking: list[str] | None = None  # pieces of the open thinking block
        self._calls: dict[int, _PendingToolUse] = {}  # unfinished calls; the first one is the open block
        self._has_calls = False
        self._has_refusal = False
        self._stop_sequence: str | None = None  # the stop sequence that ended the output
        self._reason: wire.StopReason = "end_turn"
        self._folded: list[tuple[wire.OutputBlock, list[wire.BlockDelta]]] = []
        self._end: wire.MessageDelta | None = None  # the end that was folded

    def begin(self) -> WireEvents:
        return [wire.MessageStart(message=self._message)]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        if chunk.extras is not None and chunk.extras.stop_reason in self._request.stop_sequences:
            self._stop_sequence = str(chunk.extras.stop_reason)

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> WireEvents:
        out: WireEvents = []
        for delta in deltas:
            if type(delta) is not Text:
                self._take_delta(delta, out)
            elif delta.text:
                self._add_text(delta.text, out)
        return out

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> WireEvents:
        out: WireEvents = []
        self._close_all(out, cut=finish in ("length", "content_filter"))
        self._reason = self._stop_reason(finish)
        return out

    def close(self, counts: TokenCounts) -> WireEvents:
        stopped = wire.Stopped(
            stop_reason=self._reason,
            stop_sequence=self._stop_sequence if self._reason == "stop_sequence" else None,
            stop_details=wire.RefusalDetails() if self._reason == "refusal" else UNSET,
        )
        return [wire.MessageDelta(delta=stopped, usage=_usage(counts)), wire.MessageStop()]

    def fail(self, error: AntiphonError) -> WireEvents:
        return [wire.to_problem(error, self._request_id)]

    def fold_events(self, events: WireEvents) -> None:
        for event in events:
            match event:
                case ContentBlockDelta(index=index, delta=delta):
                    self._folded[index][1].append(delta)
                case wire.ContentBlockStart(content_block=block):
                    self._folded.append((block, []))
                case wire.MessageDelta():
                    self._end = event

    def result(self) -> wire.AnthropicMessage:
        assert self._end is not None
        content, stopped = [_fold_block(block, deltas) for block, deltas in self._folded], self._end.delta
        return replace(self._message, content=content, usage=self._end.usage, **asdict(stopped))

    def _take_delta(self, delta: Delta, out: WireEvents) -> None:
        match delta:
            case ReasoningDelta(text=text) | Summary(text=text):
                if text:
                    self._add_thinking(text, out)
            case CallDelta(key=key, text=text):
                self._get_call(key).take(text, out)
            case CallStarted(key=key, name=name):
                self._start_call(key, name, out)
            case CallDone(key=key):
                self._finish_call(key, out)
            case Text(text=text) | Refusal(text=text):
                self._has_refusal |= type(delta) is Refusal
                self._add_text(text, out)
            case _:
                # no citation has a source that this API can refer to, a block stays open until another kind starts, and
                # the server runs no tools for this API
                if not isinstance(delta, InternalDelta):
                    assert_never(delta)

    def _stop_reason(self, finish: FinishKind) -> wire.StopReason:
        if finish == "length":
            return "max_tokens"
        if finish == "content_filter" or self._has_refusal:
            return "refusal"
        if self._has_calls:
            return "tool_use"
        return "stop_sequence" if self._stop_sequence is not None else "end_turn"

    def _add_text(self, text: str, out: WireEvents) -> None:
        if not self._text_open:
            self._open_block(TextBlock(text=""), out)
            self._text_open = True
        out.append(ContentBlockDelta(index=self._index, delta=TextDelta(text=text)))

    def _add_thinking(self, text: str, out: WireEvents) -> None:
        if self._thinking is None:
            self._open_block(ThinkingBlock(thinking=""), out)
            self._thinking = []
        self._thinking.append(text)
        if self._request.shows_thinking:
            out.append(ContentBlockDelta(index=self._index, delta=ThinkingDelta(thinking=text)))

    def _start_call(self, key: int, name: str, out: WireEvents) -> None:
        self._has_calls = True
        self._close_block(out)
        if key in self._calls:
            self._finish_call(key, out)
        self._calls[key] = call = _PendingToolUse(ToolUseBlock(id=self._new_id("toolu"), name=name, input={}))
        if len(self._calls) == 1:
            self._open_call(call, out)

    def _get_call(self, key: int) -> "_PendingToolUse":
        if key not in self._calls:
            raise EngineFailed("The engine sent arguments for a tool call that is not open.")
        return self._calls[key]

    def _finish_call(self, key: int, out: WireEvents) -> None:
        """Finish a call and send those that waited for it, up to the start of the first unfinished one."""
        if key in self._calls:
            self._calls[key].done = True
        self._send_calls(out)

    def _send_calls(self, out: WireEvents, *, close: bool = False, cut: bool = False) -> None:
        """Send the calls in order, up to the first unfinished one. `close`: all are finished now."""
        while self._calls:
            key, call = next(iter(self._calls.items()))
            if call.index is None:
                self._open_call(call, out)
            if not (close or call.done):
                return
            call.check(cut)
            del self._calls[key]
            out.append(wire.ContentBlockStop(index=self._index))

    def _open_call(self, call: "_PendingToolUse", out: WireEvents) -> None:
        self._index += 1
        call.open(self._index, out)

    def _open_block(self, block: TextBlock | ThinkingBlock, out: WireEvents) -> None:
        self._close_all(out)
        self._index += 1
        out.append(wire.ContentBlockStart(index=self._index, content_block=block))

    def _close_all(self, out: WireEvents, *, cut: bool = False) -> None:
        self._close_block(out)
        self._send_calls(out, close=True, cut=cut)

    def _close_block(self, out: WireEvents) -> None:
        if self._thinking is not None:
            delta = wire.SignatureDelta(signature=self._signature("".join(self._thinking)))
            out.append(ContentBlockDelta(index=self._index, delta=delta))
        if self._text_open or self._thinking is not None:
            out.append(wire.ContentBlockStop(index=self._index))
        self._text_open, self._thinking = False, None

    def _signature(self, thinking: str) -> str:
        if self._request.shows_thinking:
            return sign_thinking(thinking)
        return sign_thinking("") if self._encrypt is None else self._encrypt(thinking)


class _PendingToolUse:
    """A call that is unfinished or waits to be sent."""

    def __init__(self, block: ToolUseBlock) -> None:
        self.index: int | None = None  # of its block, once that is open
        self.done = False
        self._block = block
        self._pieces: list[str] = []  # of its input, without leading whitespace

    def open(self, index: int, out: WireEvents) -> None:
        self.index = index
        out.append(wire.ContentBlockStart(index=index, content_block=self._block))
        if partial_json := "".join(self._pieces):
            out.append(ContentBlockDelta(index=index, delta=InputJsonDelta(partial_json=partial_json)))

    def take(self, text: str, out: WireEvents) -> None:
        if not self._pieces:
            text = text.lstrip()  # SDKs fail on input that is only whitespace so far
        if text:
            self._pieces.append(text)
            if self.index is not None:
                out.append(ContentBlockDelta(index=self.index, delta=InputJsonDelta(partial_json=text)))

    def check(self, cut: bool) -> None:
        text = "".join(self._pieces)
        if parse_object(text) is None and not (cut and parse_truncated_object(text) is not None):
            raise EngineFailed(f"The model called the tool {self._block.name!r} with input that is not a JSON object.")


def _usage(counts: TokenCounts) -> wire.MessageUsage:
    """Convert token counts. Cached prompt tokens are counted separately in this API."""
    cached = min(counts.cached_tokens, counts.input_tokens)
    return wire.MessageUsage(
        input_tokens=counts.input_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=counts.output_tokens,
        output_tokens_details=wire.ThinkingTokens(thinking_tokens=counts.reasoning_tokens)
        if counts.reasoning_tokens
        else UNSET,
    )


def _fold_block(block: wire.OutputBlock, deltas: Iterable[wire.BlockDelta]) -> wire.OutputBlock:
    pieces: list[str] = []
    signature = ""
    for delta in deltas:
        match delta:
            case TextDelta(text=piece) | ThinkingDelta(thinking=piece) | InputJsonDelta(partial_json=piece):
                pieces.append(piece)
            case wire.SignatureDelta():
                signature = delta.signature
            case _:
                assert_never(delta)
    text = "".join(pieces)
    match block:
        case TextBlock():
            return TextBlock(text=text)
        case ThinkingBlock():
            return ThinkingBlock(thinking=text, signature=signature)
        case ToolUseBlock():
            parsed = parse_object(text)
            return replace(block, input=parse_truncated_object(text) or {} if parsed is None else parsed)
        case _:
            assert_never(block)
