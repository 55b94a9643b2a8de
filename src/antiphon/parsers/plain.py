"""Raw text is the answer: models without markers, and requests that want none parsed."""

from collections.abc import Sequence

from antiphon.core.deltas import Delta, Text
from antiphon.core.prompt import Chunk, Prompt


class PlainParser:
    def __init__(self, prompt: Prompt) -> None:
        pass

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        return (Text(chunk.text, chunk.logprobs),) if chunk.text or chunk.logprobs else ()

    def finish(self) -> Sequence[Delta]:
        return ()
