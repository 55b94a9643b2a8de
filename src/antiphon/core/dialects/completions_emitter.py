"""Deltas → chunks of a completion, and chunks → the text_completion as the JSON body.

A stream and a JSON body have the same chunks; the body is their fold. Choices are numbered prompt by prompt. If more
answers were generated than requested, those with the highest mean log probability per token are returned. That is known
only at the end, so it is supported for JSON bodies only; the same holds for echoing a prompt with its log
probabilities.

Log probabilities are four lists with one entry per token, with its offset in the text.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from math import inf
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects import dialect
from antiphon.core.prompt import FinishKind, TokenCounts
from antiphon.errors import EngineFailed
from antiphon.protocol.types.completions import Completion, CompletionChoice, CompletionFinish, LegacyLogprobs
from antiphon.protocol.types.parts import Logprob

_OBJECT: Final = "text_completion"


class CompletionOutputOptions(Struct, frozen=True, kw_only=True):
    prompt_count: int = 1
    calls_per_prompt: int = 1  # model calls
    choices_per_prompt: int = 1  # answers to return
    include_usage: bool = True  # send the usage in a last chunk; always set for a JSON body
    running_usage_base: int | None = None  # tokens of the prompts; if set, every chunk has the usage so far
    top_logprobs: int | None = None  # number of alternatives per token; None: no log probabilities requested
    echoes: Sequence[str] = ()  # text of each prompt, if it is to precede its answer


class CompletionEmitter(dialect.CompletionDialect):
    def __init__(self, header: dialect.CompletionHeader, options: CompletionOutputOptions) -> None:
        choices = options.prompt_count * options.calls_per_prompt
        super().__init__(header, choices, options.include_usage, options.running_usage_base)
        self._options = options
        self._offsets = [len(self._echo(choice)) for choice in range(choices)]
        self._scores: list[list[float]] = [[] for _ in range(choices)]
        # the prompt's log probabilities come with the end of the answer, so this echo is added to the fold then
        self._has_late_echo = bool(options.echoes) and options.top_logprobs is not None

    def begin(self) -> dialect.WireEvents:
        if self._has_late_echo or not self._options.echoes:
            return []
        return [self._chunk(CompletionChoice(choice, self._echo(choice))) for choice in range(len(self._offsets))]

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> dialect.WireEvents:
        """Convert text deltas. Other deltas do not occur: output is not parsed here."""
        out: dialect.WireEvents = []
        for delta in deltas:
            if type(delta) is Text:
                piece = CompletionChoice(choice, delta.text)
                if delta.logprobs:
                    self._add_logprobs(delta, piece)
                if self._tokens[choice]:
                    piece.token_ids = self._take_tokens(choice)
                out.append(self._chunk(piece))
        return out

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> dialect.WireEvents:
        extras = self._extras[choice]
        reason: CompletionFinish = "stop" if finish == "tool_calls" else finish
        last = CompletionChoice(choice, "", None, reason)
        dialect.forward_fields(extras, last, "stop_reason", "prompt_token_ids")
        if self._has_late_echo:
            echo = self._echo(choice)
            logprobs = _prompt_to_legacy_logprobs(extras.prompt_logprobs, echo, self._options.top_logprobs or 0)
            self._folded[choice].insert(0, CompletionChoice(choice, echo, logprobs))
        else:
            dialect.forward_fields(extras, last, "prompt_logprobs")
        last.token_ids = self._take_tokens(choice)
        chunk = self._chunk(last)
        dialect.forward_fields(extras, chunk, "kv_transfer_params")
        self._add_engine_fields(chunk)
        return [chunk]

    def close(self, counts: TokenCounts) -> dialect.WireEvents:
        if not self._options.include_usage:
            return []
        last = Completion(self._id, _OBJECT, self._created, self._model, [], dialect.completion_usage(counts))
        for extras in self._extras:
            dialect.forward_fields(extras, last, "kv_transfer_params")
        self._add_engine_fields(last)
        return [last]

    def result(self) -> Completion:
        """The last chunk has the usage and the fields of the whole completion."""
        calls, returned = self._options.calls_per_prompt, self._options.choices_per_prompt
        groups: list[Sequence[int]] = [range(at * calls, (at + 1) * calls) for at in range(self._options.prompt_count)]
        if returned < calls:
            groups = [sorted(group, key=self._score, reverse=True)[:returned] for group in groups]
        choices = [self._fold_choice(number, index) for index, number in enumerate(chain.from_iterable(groups))]
        completion: Completion = replace(self._last, choices=choices)
        return completion

    def _fold_choice(self, number: int, index: int) -> CompletionChoice:
        pieces = self._folded[number]
        logprobs = _join_logprobs([piece.logprobs for piece in pieces if piece.logprobs is not None])
        text, tokens = "".join([piece.text for piece in pieces]), self._fold_tokens(number)
        choice: CompletionChoice = replace(pieces[-1], index=index, text=text, logprobs=logprobs, token_ids=tokens)
        return choice

    def _echo(self, choice: int) -> str:
        return self._options.echoes[choice // self._options.calls_per_prompt] if self._options.echoes else ""

    def _score(self, choice: int) -> float:
        """Return the mean log probability, so that short answers are not favoured. Empty answers rank last."""
        scores = self._scores[choice]
        return sum(scores) / len(scores) if scores else -inf

    def _chunk(self, choice: CompletionChoice) -> Completion:
        chunk = Completion(self._id, _OBJECT, self._created, self._model, [choice], self._usage)
        if self._usage_base is not None:
            chunk.usage = self._count_chunk(is_last=choice.finish_reason is not None)
        return chunk

    def _add_logprobs(self, delta: Text, piece: CompletionChoice) -> None:
        choice = piece.index
        self._scores[choice] += [logprob.logprob for logprob in delta.logprobs]
        if self._options.top_logprobs is not None:
            piece.logprobs = _to_legacy_logprobs(delta.logprobs, self._offsets[choice], self._options.top_logprobs)
            self._offsets[choice] += sum([len(logprob.token) for logprob in delta.logprobs])


def _to_legacy_logprobs(logprobs: Iterable[Logprob], offset: int, top: int) -> LegacyLogprobs:
    """Convert log probabilities. `offset`: position of the first token; `top`: number of requested alternatives."""
    entries = [
        (one.token, one.logprob, {one.token: one.logprob, **{each.token: each.logprob for each in one.top_logprobs}})
        for one in logprobs
    ]
    return _make_logprobs(entries, offset, top)


def _prompt_to_legacy_logprobs(entries: Any, text: str, top: int) -> LegacyLogprobs:
    """Convert prompt log probabilities from vLLM's format: per token except the first, the likeliest tokens by id,
    beginning with the token itself.

    The first token has no predecessor and thus no log probability; its text is what the other tokens leave over.
    """
    try:
        alternatives = [_parse_alternatives(entry) for entry in entries[1:]]
    except (TypeError, KeyError, AttributeError, StopIteration, ValueError):
        raise EngineFailed("The engine returned no log probabilities of the prompt.") from None
    first = text[: max(0, len(text) - sum([len(next(iter(each))) for each in alternatives]))]
    return _make_logprobs([(first, None, None), *[(*next(iter(each.items())), each) for each in alternatives]], 0, top)


def _make_logprobs(
    entries: Sequence[tuple[str, float | None, dict[str, float] | None]], offset: int, top: int
) -> LegacyLogprobs:
    """Make the lists from the text, the log probability and the alternatives of each token."""
    tokens = [token for token, _, _ in entries]
    return LegacyLogprobs(
        text_offset=[*accumulate(map(len, tokens), initial=offset)][:-1],
        token_logprobs=[logprob for _, logprob, _ in entries],
        tokens=tokens,
        top_logprobs=[alternatives for _, _, alternatives in entries] if top else None,
    )


def _join_logprobs(parts: Sequence[LegacyLogprobs]) -> LegacyLogprobs | None:
    if not parts:
        return None
    return LegacyLogprobs(
        text_offset=[*chain.from_iterable([part.text_offset for part in parts])],
        token_logprobs=[*chain.from_iterable([part.token_logprobs for part in parts])],
        tokens=[*chain.from_iterable([part.tokens for part in parts])],
        top_logprobs=[*chain.from_iterable([part.top_logprobs or () for part in parts])] or None,
    )


def _parse_alternatives(entry: Any) -> dict[str, float]:
    if not (found := {str(each["decoded_token"]): float(each["logprob"]) for each in entry.values()}):
        raise ValueError("empty log probability entry")
    return found
