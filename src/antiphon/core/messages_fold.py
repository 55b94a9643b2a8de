"""The events of a stream → the message that they amount to. Nothing else makes a JSON body of Anthropic's API."""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.cut_json import cut_object, whole_object
from antiphon.protocol.messages_events import (
    AnyBlock,
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    SaidMessage,
    SaidText,
    SaidThinking,
    SaidToolUse,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
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
