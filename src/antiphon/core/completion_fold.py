"""Chunks → the text_completion that they are pieces of. Nothing else assembles one."""

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.core.dialect import Told
from antiphon.core.legacy_logprobs import joined
from antiphon.protocol.completions import Completion, CompletionChoice, LegacyLogprobs


class CompletionFold:
    def __init__(self, choices: int) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._last: Completion | None = None

    def add(self, told: Told) -> None:
        for chunk in told:
            if not isinstance(chunk, Completion):
                continue  # a fault: there will be no result
            self._last = chunk
            for said in chunk.choices:
                self._choices[said.index].add(said)

    def result(self, wanted: Sequence[int]) -> Completion:
        """With these choices, in this order; the last chunk has the usage and whatever is said of the whole."""
        assert self._last is not None
        choices = [self._choices[number].whole(index) for index, number in enumerate(wanted)]
        return replace(self._last, choices=choices)


class _Choice(Struct):
    texts: list[str] = field(default_factory=list)
    logprobs: LegacyLogprobs | None = None
    tokens: list[int] = field(default_factory=list)
    end: CompletionChoice | None = None

    def add(self, said: CompletionChoice) -> None:
        self.texts.append(said.text)
        if said.logprobs is not None:
            self.logprobs = joined(self.logprobs, said.logprobs)
        if said.token_ids:
            self.tokens += said.token_ids
        if said.finish_reason is not None:
            self.end = said

    def whole(self, index: int) -> CompletionChoice:
        assert self.end is not None
        whole = replace(self.end, index=index, text="".join(self.texts), logprobs=self.logprobs)
        if self.tokens:
            whole.token_ids = self.tokens
        return whole
