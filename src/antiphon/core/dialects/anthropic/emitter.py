"""Deltas → the events of Anthropic's API. Ids are handed in.

    message_start ─▶ ( block_start ─▶ block_delta* ─▶ block_stop )* ─▶ message_delta ─▶ message_stop
          └─────────────────────── or, at any moment ────────────────▶ error

One block is open at a time, and a closed one stays closed: of calls that overlap, one is told at a time, and the others
wait until it is done. The input of a call that was not cut is a JSON object.

The events of a stream → the message that they amount to. Nothing else makes a JSON body of Anthropic's API.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Opened,
    Put,
    Ran,
    Refusal,
    Sealed,
    Stage,
    Summary,
    Text,
    Thought,
    Turned,
)
from antiphon.core.dialects.anthropic.items import sign
from antiphon.core.dialects.anthropic.request import Asked
from antiphon.core.dialects.dialect import Told
from antiphon.core.encrypted_reasoning import Seal
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.truncated_json import cut_object, whole_object
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.ids import Prefix
from antiphon.protocol.types.anthropic.events import (
    AnyBlock,
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    RefusalDetails,
    SaidMessage,
    SaidText,
    SaidThinking,
    SaidToolUse,
    SignatureDelta,
    Stopped,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ThinkingTokens,
    problem,
)


class MessageFold:
    def __init__(self) -> None:
        self._message: SaidMessage | None = None
        self._blocks: list[_Block] = []

    def take(self, event: Struct) -> None:
        match event:
            case ContentBlockDelta(index=index, delta=delta):
                self._blocks[index].take(delta)
            case ContentBlockStart(content_block=block):
                self._blocks.append(_Block(block))
            case MessageStart(message=message):
                self._message = message
            case MessageDelta(delta=stopped, usage=usage):
                assert self._message is not None
                self._message = replace(
                    self._message,
                    stop_reason=stopped.stop_reason,
                    stop_sequence=stopped.stop_sequence,
                    stop_details=stopped.stop_details,
                    usage=usage,
                )

    def result(self) -> SaidMessage:
        assert self._message is not None
        return replace(self._message, content=[block.closed() for block in self._blocks])


class _Block:
    """One that is still being said; its text is gathered in pieces."""

    def __init__(self, block: AnyBlock) -> None:
        self._block = block
        self._pieces: list[str] = []
        self._signature = ""

    def take(self, delta: BlockDelta) -> None:
        match delta:
            case TextDelta(text=piece) | ThinkingDelta(thinking=piece) | InputJsonDelta(partial_json=piece):
                self._pieces.append(piece)
            case SignatureDelta(signature=signature):
                self._signature = signature
            case _:
                assert_never(delta)

    def closed(self) -> AnyBlock:
        said = "".join(self._pieces)
        match self._block:
            case SaidText():
                return SaidText(text=said)
            case SaidThinking():
                return SaidThinking(thinking=said, signature=self._signature)
            case SaidToolUse(id=call_id, name=name):
                given = whole_object(said)
                return SaidToolUse(id=call_id, name=name, input=cut_object(said) or {} if given is None else given)
            case _:
                assert_never(self._block)


NewId = Callable[[Prefix], str]


class MessagesEmitter:
    """A Dialect."""

    def __init__(
        self, message: SaidMessage, asked: Asked, new_id: NewId, request_id: str, seal: Seal | None = None
    ) -> None:
        """`message`: as it is before anything is said. `seal`: for thoughts that are not shown, so that the client can
        bring them back."""
        self.notes = bool(asked.stops)
        self._message = message
        self._asked = asked
        self._new_id = new_id
        self._request_id = request_id
        self._seal = seal
        self._index = -1  # of the block that is open, or was last
        self._text = False  # it is open, and of text
        self._thought: list[str] | None = None  # it is open, and a thought
        self._calls: dict[int, _Call] = {}  # that are not done; the first one is the open block
        self._called = False
        self._refused = False
        self._stop: str | None = None  # the sequence that ended it
        self._reason: StopReason = "end_turn"
        self._fold = MessageFold()

    def begin(self) -> Told:
        return [MessageStart(message=self._message)]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        if chunk.extras is not None and chunk.extras.stop_reason in self._asked.stops:
            self._stop = str(chunk.extras.stop_reason)

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        out: Told = []
        for delta in deltas:
            if type(delta) is not Text:
                self._take(delta, out)
            elif delta.text:
                self._say(delta.text, out)
        return out

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        out: Told = []
        self._close(out, cut=finish in ("length", "content_filter"))
        self._reason = self._why(finish)
        return out

    def close(self, counts: Counts) -> Told:
        stopped = Stopped(
            stop_reason=self._reason,
            stop_sequence=self._stop if self._reason == "stop_sequence" else None,
            stop_details=RefusalDetails() if self._reason == "refusal" else UNSET,
        )
        return [MessageDelta(delta=stopped, usage=_usage(counts)), MessageStop()]

    def fault(self, error: AntiphonError) -> Told:
        return [problem(self._asked.names.told(error), self._request_id)]

    def fold(self, told: Told) -> None:
        for event in told:
            self._fold.take(event)

    def result(self) -> SaidMessage:
        return self._fold.result()

    def _take(self, delta: Delta, out: Told) -> None:
        match delta:
            case Thought(text=text) | Summary(text=text):
                if text:
                    self._think(text, out)
            case CallDelta(key=key, text=text):
                self._call(key).take(text, out)
            case CallStarted(key=key, name=name):
                self._start(key, name, out)
            case CallDone(key=key):
                self._done(key, out)
            case Text(text=text) | Refusal(text=text):
                self._refused |= type(delta) is Refusal
                self._say(text, out)
            case Citation() | Break() | Sealed():
                pass  # nothing here cites what this API could point to, and a block goes on until another kind begins
            case Opened() | Stage() | Ran() | Put() | Turned():
                pass  # the server runs nothing here
            case _:
                assert_never(delta)

    def _why(self, finish: Finish) -> StopReason:
        if finish == "length":
            return "max_tokens"
        if finish == "content_filter" or self._refused:
            return "refusal"
        if self._called:
            return "tool_use"
        return "stop_sequence" if self._stop is not None else "end_turn"

    def _say(self, text: str, out: Told) -> None:
        if not self._text:
            self._open(SaidText(), out)
            self._text = True
        out.append(ContentBlockDelta(index=self._index, delta=TextDelta(text=text)))

    def _think(self, text: str, out: Told) -> None:
        if self._thought is None:
            self._open(SaidThinking(), out)
            self._thought = []
        self._thought.append(text)
        if self._asked.shows_thoughts:
            out.append(ContentBlockDelta(index=self._index, delta=ThinkingDelta(thinking=text)))

    def _start(self, key: int, name: str, out: Told) -> None:
        self._called = True
        self._close_said(out)
        if key in self._calls:
            self._done(key, out)
        self._calls[key] = call = _Call(SaidToolUse(id=self._new_id("toolu"), name=name))
        if len(self._calls) == 1:
            self._tell(call, out)

    def _call(self, key: int) -> "_Call":
        if key not in self._calls:
            raise EngineFailed("The engine went on with a tool call after it had said something else.")
        return self._calls[key]

    def _done(self, key: int, out: Told) -> None:
        """What waited for this one is told: what is done of it, and the beginning of the first that is not."""
        if key in self._calls:
            self._calls[key].done = True
        while self._calls:
            key, call = next(iter(self._calls.items()))
            if call.index is None:
                self._tell(call, out)
            if not call.done:
                return
            self._shut(key, out)

    def _tell(self, call: "_Call", out: Told) -> None:
        self._index += 1
        call.open(self._index, out)

    def _shut(self, key: int, out: Told, *, cut: bool = False) -> None:
        call = self._calls.pop(key)
        call.check(cut)
        out.append(ContentBlockStop(index=self._index))

    def _open(self, block: SaidText | SaidThinking, out: Told) -> None:
        self._close(out)
        self._index += 1
        out.append(ContentBlockStart(index=self._index, content_block=block))

    def _close(self, out: Told, *, cut: bool = False) -> None:
        self._close_said(out)
        while self._calls:
            key, call = next(iter(self._calls.items()))
            if call.index is None:
                self._tell(call, out)
            self._shut(key, out, cut=cut)

    def _close_said(self, out: Told) -> None:
        if self._thought is not None:
            delta = SignatureDelta(signature=self._signature("".join(self._thought)))
            out.append(ContentBlockDelta(index=self._index, delta=delta))
        if self._text or self._thought is not None:
            out.append(ContentBlockStop(index=self._index))
        self._text, self._thought = False, None

    def _signature(self, thought: str) -> str:
        if self._asked.shows_thoughts:
            return sign(thought)
        return sign("") if self._seal is None else self._seal(thought)


class _Call:
    """A call that is not done, or waits to be told."""

    def __init__(self, block: SaidToolUse) -> None:
        self.index: int | None = None  # of its block, once that is open
        self.done = False
        self._block = block
        self._pieces: list[str] = []  # of its input, from where that begins

    def open(self, index: int, out: Told) -> None:
        self.index = index
        out.append(ContentBlockStart(index=index, content_block=self._block))
        if said := "".join(self._pieces):
            out.append(ContentBlockDelta(index=index, delta=InputJsonDelta(partial_json=said)))

    def take(self, text: str, out: Told) -> None:
        if not self._pieces:
            text = text.lstrip()  # SDKs fail on an input that is nothing but space so far
        if text:
            self._pieces.append(text)
            if self.index is not None:
                out.append(ContentBlockDelta(index=self.index, delta=InputJsonDelta(partial_json=text)))

    def check(self, cut: bool) -> None:
        said = "".join(self._pieces)
        if whole_object(said) is None and not (cut and cut_object(said) is not None):
            raise EngineFailed(f"The model called the tool {self._block.name!r} with an input that is no JSON object.")


def _usage(counts: Counts) -> MessageUsage:
    """Of the prompt's tokens those that were in a cache are counted apart."""
    cached = min(counts.cached_tokens, counts.input_tokens)
    return MessageUsage(
        input_tokens=counts.input_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=counts.output_tokens,
        output_tokens_details=ThinkingTokens(thinking_tokens=counts.reasoning_tokens)
        if counts.reasoning_tokens
        else UNSET,
    )
