"""Reads chat completions into Chunks: one reader per response, streamed or not (`whole_response.py`).

    reading ──finish_reason──▶ finished ──usage, [DONE] or end──▶ ended (the last Chunk was returned)
       └──────── error object or unknown finish_reason ─────────▶ fault (raised after the chunks before it)

A response that ends without a finish_reason is a failure, whatever its HTTP status was.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, Sampling
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.clamp import clamp_logprob
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.readers.call_repair import CallRepairer
from antiphon.engines.http.readers.wire import (
    Candidate,
    Choice,
    Delta,
    FullChoice,
    FullCompletion,
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


class ChatCompletionReader(Struct, eq=False):
    """Reader of `/v1/chat/completions`.

    `_stop_cut` is set if the engine includes stop strings that have to be removed; `_full` if extra fields are read
    too, which makes every event more expensive.
    """

    _label: str
    _sampling: Sampling
    _stop_cut: StopStringCutter | None = None
    _full: bool = False
    _call_repairer: CallRepairer | None = None  # created with the first call
    _pending_logprobs: list[TokenLogprob] = []  # of tokens that came without output
    _extras: EngineExtras | None = None
    _usage: WireUsage | None = None
    _finish: FinishKind | None = None
    ended: bool = False
    cut: bool = False
    fault: AntiphonError | None = None

    def feed(self, events: Iterable[WireCompletion | FullCompletion]) -> list[Chunk]:
        """Read events. This is the token path: most events are a piece of text and nothing else, so that is checked
        first.
        """
        chunks: list[Chunk] = []
        is_fast = self._stop_cut is None and not self._full
        for event in events:
            choices = event.choices
            if event.error is not None:
                self.fault = map_stream_error(self._label, event.error)
                break
            if not is_fast and isinstance(event, FullCompletion) and event.prompt_token_ids:
                chunks.append(Chunk(extras=EngineExtras(prompt_token_ids=event.prompt_token_ids)))
            if choices:
                choice: Choice = choices[0]
                delta = choice.delta
                if is_fast and delta is not None and delta.content and self._finish is None and not (
                    choice.finish_reason or choice.index or choice.logprobs or delta.reasoning_content
                    or delta.reasoning or delta.tool_calls or delta.refusal or delta.function_call
                ):  # fmt: skip
                    chunks.append(Chunk(text=delta.content))
                else:
                    self._read_choice(choice, chunks)
                if self.fault is not None:
                    break
            if event.usage is not None:
                self._usage = event.usage
                self._note_metadata(event)
                if self._finish is not None:
                    chunks.append(self._final_chunk())
                    break
        return chunks

    def read_whole(self, choice: Any) -> list[Chunk]:
        """Read the choice of an unstreamed response.

        The finish and the extras are set on the last chunk, or on an additional one if that already has extras.
        """
        chunks: list[Chunk] = []
        self._read_choice(choice, chunks)
        if self.fault is not None:
            raise self.fault
        if self._finish is None:
            raise self._unfinished_error()
        if not chunks or chunks[-1].extras is not None:
            chunks.append(Chunk())
        chunks[-1].finish, chunks[-1].extras = self._finish, self._extras
        return chunks

    @property
    def finished(self) -> bool:
        """Whether the engine has sent its finish reason."""
        return self._finish is not None

    def end(self) -> list[Chunk]:
        """Return the last chunk when no more events follow."""
        if self.ended:
            return []
        if self._finish is None:
            raise self._unfinished_error()
        return [self._final_chunk()]

    def _unfinished_error(self) -> EngineFailed:
        return EngineFailed(f"{self._label} stopped in the middle of its answer.")

    def _final_chunk(self) -> Chunk:
        self.ended = True
        text = self._stop_cut.finish() if self._stop_cut is not None else ""
        return Chunk(text=text, finish=self._finish, counts=counts_from_usage(self._usage), extras=self._extras)

    def _note_metadata(self, event: WireCompletion | FullCompletion) -> None:
        """Store the metadata that comes once per response."""
        if event.system_fingerprint is not None or event.service_tier is not None:
            extras = self._ensure_extras()
            extras.system_fingerprint, extras.service_tier = event.system_fingerprint, event.service_tier

    def _ensure_extras(self) -> EngineExtras:
        if self._extras is None:
            self._extras = EngineExtras()
        return self._extras

    def _read_choice(self, choice: Choice, chunks: list[Chunk]) -> None:
        if choice.index or self._finish is not None:
            return  # another choice than the requested one, or data after the finish
        before = len(chunks)
        if (delta := choice.delta or choice.message) is not None:
            if choice.logprobs is not None or self._pending_logprobs:
                self._collect_logprobs(choice, delta)
            if choice.logprobs is not None and choice.finish_reason == "stop":
                _drop_end_token(choice.logprobs, delta)
            text, reasoning = delta.content or "", delta.reasoning_content or delta.reasoning
            if text and self._stop_cut is not None:
                text = self._stop_cut.feed(text)
            if reasoning or delta.refusal or delta.tool_calls or delta.function_call or choice.logprobs is not None:
                self._append_chunk(text, reasoning or "", delta, choice.logprobs, chunks)
            elif text:
                chunks.append(Chunk(text=text))
        stopped_by = choice.stop_reason
        if isinstance(choice, FullChoice):
            if choice.token_ids:
                if len(chunks) == before:
                    chunks.append(Chunk())
                chunks[-1].tokens = tuple(choice.token_ids)
            if choice.matched_stop is not None and not isinstance(choice.matched_stop, list):
                stopped_by = choice.matched_stop
        if choice.finish_reason:
            self._set_finish(choice.finish_reason, stopped_by)

    def _collect_logprobs(self, choice: Choice, delta: Delta) -> None:
        """Hold back a token that came without output: it may be the end token, which SGLang sends as an event of its
        own.
        """
        logprobs = [
            *self._pending_logprobs,
            *((choice.logprobs.content if choice.logprobs is not None else None) or ()),
        ]
        has_output = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal or _wire_calls(delta)
        is_pending = not (has_output or choice.finish_reason)
        self._pending_logprobs, choice.logprobs = (logprobs, None) if is_pending else ([], Logprobs(content=logprobs))

    def _append_chunk(
        self, text: str, reasoning: str, delta: Delta, logprobs: Logprobs | None, chunks: list[Chunk]
    ) -> None:
        if (wire_calls := _wire_calls(delta)) and self._call_repairer is None:
            self._call_repairer = CallRepairer()
        calls = () if self._call_repairer is None else tuple(self._call_repairer.repair(wire_calls))
        if self._stop_cut is not None and (reasoning or calls):
            text += self._stop_cut.finish()
        chunk = Chunk(text=text, reasoning=reasoning, refusal=delta.refusal or "", calls=calls)
        if logprobs is not None and (top_count := self._sampling.logprobs) is not None:
            chunk.logprobs = tuple([to_logprob(one, top_count) for one in logprobs.content or ()])
        if text or reasoning or chunk.refusal or calls or chunk.logprobs:
            chunks.append(chunk)

    def _set_finish(self, reason: str, stopped_by: int | str | None) -> None:
        """Set the finish; `stopped_by` is the string or token that ended the output, if the engine reports it."""
        self._finish = FINISHES.get(reason)
        if stopped_by is not None:
            self._ensure_extras().stop_reason = stopped_by
        if self._finish is None:
            self.fault = EngineFailed(
                f"{self._label} ended its response with an unknown finish reason: {reason[:80]!r}."
            )
        elif self._call_repairer is not None and self._call_repairer.has_nameless():
            self.fault = EngineFailed(f"{self._label} sent a tool call without a name.")


def _wire_calls(delta: Delta) -> Sequence[WireToolCall]:
    """Return the tool calls, or the deprecated `function_call` as the only one."""
    if delta.tool_calls is not None or delta.function_call is None:
        return delta.tool_calls or ()
    return (WireToolCall(index=0, function=delta.function_call),)


def _drop_end_token(logprobs: Logprobs, delta: Delta) -> None:
    """Drop the token that ended the output, which vLLM includes in its log probabilities."""
    entries = logprobs.content
    if entries and not (delta.content or delta.reasoning or delta.reasoning_content or "").endswith(entries[-1].token):
        entries.pop()


def to_logprob(entry: TokenLogprob, top_count: int) -> Logprob:
    top = [_to_top_logprob(candidate) for candidate in (entry.top_logprobs or ())[:top_count]]
    return Logprob(token=entry.token, bytes=_token_bytes(entry), logprob=clamp_logprob(entry.logprob), top_logprobs=top)


def _to_top_logprob(candidate: Candidate) -> TopLogprob:
    return TopLogprob(token=candidate.token, bytes=_token_bytes(candidate), logprob=clamp_logprob(candidate.logprob))


def _token_bytes(candidate: Candidate) -> list[int]:
    return list(candidate.token.encode()) if candidate.bytes is None else candidate.bytes
