"""Deltas → chunks of a completion, the same for a stream and for a JSON body, which is their fold.

Choices are numbered prompt by prompt. Of more answers than are wanted the likeliest are kept, token by token: that is
known only at the end, so it is for JSON bodies alone. So is a prompt that is echoed with its log probabilities.

Chunks → the text_completion that they are pieces of. Nothing else assembles one.

Log probabilities in the shape of completions: four lists, an entry for each token, with its place in the text.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects.dialect import Head, PassedOn, Told, completion_usage, stream_fault
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.scores import mean
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.completions import Completion, CompletionChoice, CompletionFinish, LegacyLogprobs
from antiphon.protocol.types.parts import Logprob


def legacy(logprobs: Iterable[Logprob], offset: int, top: int) -> LegacyLogprobs:
    """`offset`: where the first token begins; `top`: how many alternatives were asked for."""
    out = _empty(top)
    for said in logprobs:
        alternatives = {said.token: said.logprob, **{each.token: each.logprob for each in said.top_logprobs}}
        _add(out, said.token, said.logprob, alternatives, offset)
        offset += len(said.token)
    return out


def of_prompt(given: Any, text: str, top: int) -> LegacyLogprobs:
    """From vLLM's shape: for each token of the prompt but the first the likeliest ones by id, itself before all others.

    The first token follows nothing, so it has none; its text is what the others leave.
    """
    try:
        rest = [_likeliest(entry) for entry in given[1:]]
    except (TypeError, KeyError, AttributeError, StopIteration, ValueError):
        raise EngineFailed("The engine gave no log probabilities of the prompt.") from None
    first = text[: max(0, len(text) - sum([len(next(iter(each))) for each in rest]))]
    out, offset = _empty(top), len(first)
    _add(out, first, None, None, 0)
    for each in rest:
        token, logprob = next(iter(each.items()))
        _add(out, token, logprob, each, offset)
        offset += len(token)
    return out


def joined(one: LegacyLogprobs | None, other: LegacyLogprobs) -> LegacyLogprobs:
    """The other after the one, which is changed."""
    if one is None:
        return other
    one.text_offset += other.text_offset
    one.token_logprobs += other.token_logprobs
    one.tokens += other.tokens
    if one.top_logprobs is not None:
        one.top_logprobs += other.top_logprobs or ()
    return one


def _empty(top: int) -> LegacyLogprobs:
    return LegacyLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[] if top else None)


def _add(
    out: LegacyLogprobs, token: str, logprob: float | None, alternatives: dict[str, float] | None, offset: int
) -> None:
    out.text_offset.append(offset)
    out.token_logprobs.append(logprob)
    out.tokens.append(token)
    if out.top_logprobs is not None:
        out.top_logprobs.append(alternatives)


def _likeliest(entry: Any) -> dict[str, float]:
    found = {str(each["decoded_token"]): float(each["logprob"]) for each in entry.values()}
    if not found:
        raise ValueError("a token without itself")
    return found


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
