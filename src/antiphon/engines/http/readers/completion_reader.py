"""Reads completions into Chunks: one reader per response, streamed or not.

    reading ──finish_reason──▶ finished ──usage, [DONE] or end──▶ ended (the last Chunk was returned)
       └──────── error object or unknown finish_reason ─────────▶ fault (raised after the chunks before it)

A response that ends without a finish_reason is a failure, whatever its HTTP status was. An unstreamed response is read
as a stream of one event.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from antiphon.core.prompt import CallPiece, Chunk, EngineExtras, FinishKind, Sampling
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.base import clamp_logprob
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.readers.call_repair import CallRepairer
from antiphon.engines.http.readers.wire import (
    Candidate,
    Choice,
    Delta,
    Logprobs,
    TokenLogprob,
    WireCompletion,
    WireToolCall,
    WireUsage,
    counts_from_usage,
)
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob

FINISHES: dict[str, FinishKind] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_METADATA = ("system_fingerprint", "service_tier", "prompt_logprobs", "kv_transfer_params")
_NO_DELTA = Delta()


class ChatCompletionReader(Struct, eq=False):
    """Reader of `/v1/chat/completions`. `_stop_cut`: set if the engine includes stop strings, to remove them."""

    _label: str
    _sampling: Sampling
    _stop_cut: StopStringCutter | None = None
    _call_repairer: CallRepairer | None = None  # created with the first call
    _pending_logprobs: list[TokenLogprob] = []  # of tokens that came without output
    _extras: EngineExtras | None = None
    _usage: WireUsage | None = None
    _finish: FinishKind | None = None
    ended: bool = False
    cut: bool = False
    fault: AntiphonError | None = None

    def feed(self, events: Iterable[WireCompletion]) -> list[Chunk]:
        """Read events. This is the token path."""
        chunks: list[Chunk] = []
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, event.error)
                break
            if event.prompt_token_ids and self._sampling.return_token_ids:
                chunks.append(Chunk(extras=EngineExtras(prompt_token_ids=event.prompt_token_ids)))
            # other choices than the first were not requested, and nothing follows the finish
            if event.choices and not (choice := event.choices[0]).index and self._finish is None:
                self._read_choice(choice, chunks)
                if self.fault is not None:
                    break
            if event.usage is not None or self._finish is not None:
                self._note_end(event)
                if event.usage is not None and self._finish is not None:
                    chunks += self.end()
                    break
        return chunks

    def read_whole(self, completion: WireCompletion) -> list[Chunk]:
        """Read an unstreamed response, of which the last chunk has both output and the end.

        Of the choices of a beam search the first one is the best.
        """
        if completion.choices:
            ranked = sorted(completion.choices, key=lambda choice: choice.index or 0)
            if (beam := self._sampling.beam) >= len(ranked):
                raise EngineFailed(f"{self._label} returned {len(ranked)} of at least {beam + 1} answers.")
            ranked[beam].index, completion.choices = 0, [ranked[beam]]
        chunks = self.feed((completion,))
        if self.fault is not None:
            raise self.fault
        *chunks, last = [*chunks, *self.end()]
        if chunks and chunks[-1].extras is None:
            end, last = last, chunks.pop()
            last.finish, last.counts, last.extras = end.finish, end.counts, end.extras
        return [*chunks, last]

    @property
    def finished(self) -> bool:
        """Whether the engine has sent its finish reason."""
        return self._finish is not None

    def end(self) -> list[Chunk]:
        """Return the last chunk when no more events follow."""
        if self.ended:
            return []
        if self._finish is None:
            raise EngineFailed(f"{self._label} stopped in the middle of its answer.")
        self.ended = True
        text = "" if self._stop_cut is None else self._stop_cut.finish()
        return [Chunk(text=text, finish=self._finish, counts=counts_from_usage(self._usage), extras=self._extras)]

    def _note_end(self, event: WireCompletion) -> None:
        """Store the data that comes once per response."""
        if event.usage is not None:
            self._usage = event.usage
        for name in _METADATA:
            if (value := getattr(event, name)) is not None:
                setattr(self._ensure_extras(), name, value)

    def _ensure_extras(self) -> EngineExtras:
        if self._extras is None:
            self._extras = EngineExtras()
        return self._extras

    def _read_choice(self, choice: Choice, chunks: list[Chunk]) -> None:
        delta = choice.delta or choice.message or _NO_DELTA
        chunk = Chunk(text=delta.content or "")
        if reasoning := delta.reasoning_content or delta.reasoning:
            chunk.reasoning = reasoning
        if delta.refusal:
            chunk.refusal = delta.refusal
        if delta.tool_calls or delta.function_call is not None:
            chunk.calls = self._repair_calls(delta)
        if choice.token_ids:
            chunk.tokens = tuple(choice.token_ids)
        if choice.logprobs is not None or self._pending_logprobs:
            chunk.logprobs = self._take_logprobs(choice, delta)
        if self._stop_cut is not None:
            chunk.text = self._stop_cut.feed(chunk.text)
            if chunk.reasoning or chunk.calls:
                chunk.text += self._stop_cut.finish()
        if chunk.text or chunk.reasoning or chunk.refusal or chunk.calls or chunk.tokens or chunk.logprobs:
            chunks.append(chunk)
        if choice.finish_reason:
            self._set_finish(choice, choice.finish_reason)

    def _repair_calls(self, delta: Delta) -> tuple[CallPiece, ...]:
        if self._call_repairer is None:
            self._call_repairer = CallRepairer()
        # the deprecated `function_call` is the only call
        calls = delta.tool_calls or (WireToolCall(index=0, function=delta.function_call),)
        return tuple(self._call_repairer.repair(calls))

    def _take_logprobs(self, choice: Choice, delta: Delta) -> tuple[Logprob, ...]:
        """Return the log probabilities that belong to a delta.

        A token that came without output is held back: it may be the end token, which SGLang sends as an event of its
        own. The end token is dropped; vLLM includes it with the last text.
        """
        entries = [*self._pending_logprobs, *((choice.logprobs.content if choice.logprobs is not None else None) or ())]
        text = delta.content or delta.reasoning_content or delta.reasoning or ""
        has_output = text or delta.refusal or delta.tool_calls or delta.function_call
        self._pending_logprobs = [] if has_output or choice.finish_reason else entries
        if self._pending_logprobs or self._sampling.logprobs is None:
            return ()
        if choice.finish_reason == "stop" and entries and not text.endswith(entries[-1].token):
            entries.pop()
        return tuple([_to_logprob(entry, self._sampling.logprobs) for entry in entries])

    def _set_finish(self, choice: Choice, reason: str) -> None:
        self._finish = FINISHES.get(reason)
        stopped_by = choice.matched_stop if isinstance(choice.matched_stop, int | str) else choice.stop_reason
        if stopped_by is not None:
            self._ensure_extras().stop_reason = stopped_by
        if self._finish is None:
            self.fault = EngineFailed(
                f"{self._label} ended its response with an unknown finish reason: {reason[:80]!r}."
            )
        elif self._call_repairer is not None and self._call_repairer.has_nameless():
            self.fault = EngineFailed(f"{self._label} sent a tool call without a name.")


class TextCompletionReader(ChatCompletionReader, eq=False):
    """Reader of `/v1/completions`: raw text, and token ids where the engine returns them."""

    def _read_choice(self, choice: Choice, chunks: list[Chunk]) -> None:
        chunk = Chunk(text=choice.text or "")
        if self._stop_cut is not None:
            chunk.text = self._stop_cut.feed(chunk.text)
        if choice.token_ids:
            chunk.tokens = tuple(choice.token_ids)
        if choice.logprobs is not None and (top_count := self._sampling.logprobs) is not None:
            chunk.logprobs = tuple(_to_logprobs(choice, choice.logprobs, top_count))
        if choice.prompt_token_ids and self._sampling.return_token_ids:
            chunk.extras = EngineExtras(prompt_token_ids=choice.prompt_token_ids)
        if chunk.text or chunk.tokens or chunk.logprobs or chunk.extras is not None:
            chunks.append(chunk)
        if choice.prompt_logprobs is not None:
            self._ensure_extras().prompt_logprobs = choice.prompt_logprobs
        if choice.finish_reason:
            self._set_finish(choice, choice.finish_reason)


def _to_logprobs(choice: Choice, logprobs: Logprobs, top_count: int) -> Iterator[Logprob]:
    """Yield log probabilities from parallel lists; Ollama sends `content` as for chats."""
    if logprobs.content is not None:
        yield from [_to_logprob(one, top_count) for one in logprobs.content]
        return
    tokens, numbers, tops = logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or []
    if choice.finish_reason == "stop" and tokens and not (choice.text or "").endswith(tokens[-1]):
        tokens = tokens[:-1]  # the token that ended the output is not part of it
    for at, token in enumerate(tokens):
        top = tops[at] if at < len(tops) else None
        yield Logprob(
            token=token,
            bytes=list(token.encode()),
            logprob=clamp_logprob(numbers[at] if at < len(numbers) else None),
            top_logprobs=_rank_candidates(top or {}, top_count),
        )


def _rank_candidates(candidates: dict[str, float | None], top_count: int) -> list[TopLogprob]:
    """Sort the candidates by probability: the chosen one may come before more likely ones."""
    ranked = sorted(((clamp_logprob(value), token) for token, value in candidates.items()), reverse=True)[:top_count]
    return [TopLogprob(token=token, bytes=list(token.encode()), logprob=value) for value, token in ranked]


def _to_logprob(entry: TokenLogprob, top_count: int) -> Logprob:
    top = [
        TopLogprob(token=one.token, bytes=_token_bytes(one), logprob=clamp_logprob(one.logprob))
        for one in (entry.top_logprobs or ())[:top_count]
    ]
    return Logprob(token=entry.token, bytes=_token_bytes(entry), logprob=clamp_logprob(entry.logprob), top_logprobs=top)


def _token_bytes(candidate: Candidate) -> list[int]:
    return list(candidate.token.encode()) if candidate.bytes is None else candidate.bytes
