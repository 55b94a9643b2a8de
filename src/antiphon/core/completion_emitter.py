"""Deltas → chunks of a completion, the same for a stream and for a JSON body, which is their fold.

Choices are numbered prompt by prompt. Of more answers than are wanted the likeliest are kept, token by token: that is
known only at the end, so it is for JSON bodies alone. So is a prompt that is echoed with its log probabilities.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.completion_fold import CompletionFold
from antiphon.core.completion_usage import completion_usage, stream_fault
from antiphon.core.deltas import Delta, Text
from antiphon.core.dialect import Head, Told
from antiphon.core.legacy_logprobs import legacy, of_prompt
from antiphon.core.passed_on import PassedOn
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.scores import mean
from antiphon.errors import AntiphonError
from antiphon.protocol.completions import Completion, CompletionChoice, CompletionFinish

_OBJECT: Final = "text_completion"


class CompletionManner(Struct, frozen=True, kw_only=True):
    """How a client wants to be answered."""

    prompts: int = 1
    calls: int = 1  # of the model for each prompt
    wanted: int = 1  # of the answers to each prompt
    usage: bool = True  # a last chunk tells it; always so for a JSON body
    running: int | None = None  # every chunk tells the usage so far: the tokens of the prompts
    top: int | None = None  # log probabilities are wanted, with so many alternatives
    echoes: Sequence[str] = ()  # of each prompt, if it is to be repeated before its answer


class CompletionEmitter:
    def __init__(self, head: Head, manner: CompletionManner) -> None:
        choices = manner.prompts * manner.calls
        self._id, self._created, self._model = head.id, head.created, head.model
        self._manner = manner
        self._usage: UnsetType | None = None if manner.usage else UNSET  # of chunks before the last
        self._passed = PassedOn(choices, head.service_tier)
        self._offsets = [len(self._echo(choice)) for choice in range(choices)]
        self._scores: list[list[float]] = [[] for _ in range(choices)]
        self._holds = bool(manner.echoes) and manner.top is not None
        self._held: list[list[Delta]] = [[] for _ in range(choices)]
        self._pieces = 0
        self._fold: CompletionFold | None = None

    def begin(self) -> Told:
        if self._holds or not self._manner.echoes:
            return []
        return [self._chunk(CompletionChoice(choice, self._echo(choice))) for choice in range(len(self._offsets))]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        self._passed.note(chunk, choice)

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        if self._holds:
            self._held[choice] += deltas
            return []
        return self._said(deltas, choice)

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        out: Told = []
        extras = self._passed.extras[choice]
        if self._holds:
            echo = self._echo(choice)
            told = of_prompt(extras.prompt_logprobs, echo, self._manner.top or 0)
            out += [self._chunk(CompletionChoice(choice, echo, told)), *self._said(self._held[choice], choice)]
        reason: CompletionFinish = "stop" if finish == "tool_calls" else finish
        last = CompletionChoice(choice, "", None, reason)
        if extras.stop_reason is not None:
            last.stop_reason = extras.stop_reason
        if extras.prompt_token_ids is not None:
            last.prompt_token_ids = extras.prompt_token_ids
        if extras.prompt_logprobs is not None and not self._holds:
            last.prompt_logprobs = extras.prompt_logprobs
        last.token_ids = self._passed.take_tokens(choice)
        chunk = self._chunk(last)
        if extras.kv_transfer_params is not None:
            chunk.kv_transfer_params = extras.kv_transfer_params
        return [*out, self._signed(chunk)]

    def close(self, counts: Counts) -> Told:
        if not self._manner.usage:
            return []
        last = Completion(self._id, _OBJECT, self._created, self._model, [], completion_usage(counts))
        for extras in self._passed.extras:
            if extras.kv_transfer_params is not None:
                last.kv_transfer_params = extras.kv_transfer_params
        return [self._signed(last)]

    def fault(self, error: AntiphonError) -> Told:
        return [stream_fault(error)]

    def fold(self, told: Told) -> None:
        if self._fold is None:
            self._fold = CompletionFold(len(self._offsets))
        self._fold.add(told)

    def result(self) -> Completion:
        assert self._fold is not None
        calls, wanted = self._manner.calls, self._manner.wanted
        groups = [range(prompt * calls, (prompt + 1) * calls) for prompt in range(self._manner.prompts)]
        if wanted < calls:
            return self._fold.result(
                [choice for group in groups for choice in sorted(group, key=self._score, reverse=True)[:wanted]]
            )
        return self._fold.result([choice for group in groups for choice in group])

    def _echo(self, choice: int) -> str:
        return self._manner.echoes[choice // self._manner.calls] if self._manner.echoes else ""

    def _score(self, choice: int) -> float:
        return mean(self._scores[choice])

    def _chunk(self, choice: CompletionChoice) -> Completion:
        chunk = Completion(self._id, _OBJECT, self._created, self._model, [choice], self._usage)
        if self._manner.running is not None:
            self._pieces += choice.finish_reason is None
            chunk.usage = completion_usage(Counts(input_tokens=self._manner.running, output_tokens=self._pieces))
        return chunk

    def _signed(self, chunk: Completion) -> Completion:
        chunk.service_tier = self._passed.tier
        if self._passed.fingerprint is not None:
            chunk.system_fingerprint = self._passed.fingerprint
        return chunk

    def _said(self, deltas: Iterable[Delta], choice: int) -> Told:
        """Whatever is not text a model cannot say here: nothing is parsed."""
        out: Told = []
        for delta in deltas:
            if type(delta) is Text:
                said = CompletionChoice(choice, delta.text)
                if delta.logprobs:
                    self._weigh(delta, said)
                if self._passed.tokens[choice]:
                    said.token_ids = self._passed.take_tokens(choice)
                out.append(self._chunk(said))
        return out

    def _weigh(self, delta: Text, said: CompletionChoice) -> None:
        choice = said.index
        self._scores[choice] += [logprob.logprob for logprob in delta.logprobs]
        if self._manner.top is not None:
            said.logprobs = legacy(delta.logprobs, self._offsets[choice], self._manner.top)
            self._offsets[choice] += sum([len(logprob.token) for logprob in delta.logprobs])
