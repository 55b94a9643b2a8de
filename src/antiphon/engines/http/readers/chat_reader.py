"""Chat completions → Chunks: one reader for each answer, whether it comes in pieces or at once.

    hearing ──finish_reason──▶ finished ──usage, [DONE] or the end──▶ ended (the last Chunk was given)
       └──────── an error object, a word that nobody knows ────────▶ fault (told after what came before it)

An answer that ends without a finish_reason has not ended well, whatever the HTTP status was.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import Chunk, Extras, Finish, Sampling
from antiphon.core.stop_strings import StopCut
from antiphon.engines.http.error_mapping import said_error
from antiphon.engines.http.readers.call_repair import Calls
from antiphon.engines.http.readers.wire import (
    FULL_COMPLETION,
    Candidate,
    Choice,
    Completion,
    Delta,
    FullChoice,
    FullCompletion,
    Logprobs,
    TokenLogprob,
    ToolCall,
    Usage,
    counts,
)
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.response import Logprob, TopLogprob

FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
LEAST_LOGPROB = -9999.0
_UNSAID = (None,) * 5


class ChatReader(Struct, eq=False):
    """`_cut` is there if the engine sends stop strings along that nobody wants to see; `_full` if what is said beside
    the answer is wanted too, which makes every event cost more."""

    _who: str
    _sampling: Sampling
    _cut: StopCut | None = None
    _full: bool = False
    _calls: Calls | None = None  # once there is one
    _unspoken: list[TokenLogprob] = []  # tokens with which nothing was said
    _extras: Extras | None = None
    _usage: Usage | None = None
    _finish: Finish | None = None
    ended: bool = False
    cut: bool = False
    fault: AntiphonError | None = None

    def feed(self, events: Iterable[Completion | FullCompletion]) -> list[Chunk]:
        """The token path: most events are a piece of text and nothing else, and cost least if that is seen first."""
        chunks: list[Chunk] = []
        plainly = self._cut is None and not self._full
        for event in events:
            choices = event.choices
            if event.error is not None:
                self.fault = said_error(self._who, event.error)
                break
            if not plainly and isinstance(event, FullCompletion) and event.prompt_token_ids:
                chunks.append(Chunk(extras=Extras(prompt_token_ids=event.prompt_token_ids)))
            if choices:
                choice: Choice = choices[0]
                delta = choice.delta
                if plainly and delta is not None and delta.content and self._finish is None and not (
                    choice.finish_reason or choice.index or choice.logprobs or delta.reasoning_content
                    or delta.reasoning or delta.tool_calls or delta.refusal or delta.function_call
                ):  # fmt: skip
                    chunks.append(Chunk(text=delta.content))
                else:
                    self._hear(choice, chunks)
                if self.fault is not None:
                    break
            if event.usage is not None:
                self._usage = event.usage
                self._note(event)
                if self._finish is not None:
                    chunks.append(self._last())
                    break
        return chunks

    @classmethod
    def whole(cls, who: str, completion: Any, sampling: Sampling) -> list[Chunk]:
        """All of an answer that came at once: of several choices the first, which is the best. Its end is told with the
        last that was said, if there is nothing beside that already."""
        if completion.error is not None:
            raise EngineFailed(f"{who} answered with an error, and as if it were none.")
        if not completion.choices:
            raise EngineFailed(f"{who} answered without an answer.")
        choice = min(completion.choices, key=lambda choice: choice.index or 0)
        choice.index = 0
        reader, chunks = cls(who, sampling, None, True), list[Chunk]()
        reader._hear(choice, chunks)
        if reader.fault is not None:
            raise reader.fault
        if reader._finish is None:
            raise reader._unfinished()
        if not chunks or chunks[-1].extras is not None:
            chunks.append(Chunk())
        last = chunks[-1]
        last.finish, last.counts = reader._finish, counts(completion.usage)
        last.extras = reader._said_once(completion, choice)
        return chunks

    @property
    def finished(self) -> bool:
        """Whether the engine has said why it stopped."""
        return self._finish is not None

    def end(self) -> list[Chunk]:
        """When no more events come."""
        if self.ended:
            return []
        if self._finish is None:
            raise self._unfinished()
        return [self._last()]

    def _unfinished(self) -> EngineFailed:
        return EngineFailed(f"{self._who} stopped in the middle of its answer.")

    def _last(self) -> Chunk:
        self.ended = True
        rest = self._cut.finish() if self._cut is not None else ""
        return Chunk(text=rest, finish=self._finish, counts=counts(self._usage), extras=self._extras)

    def _note(self, event: Completion | FullCompletion) -> None:
        """What is said once, beside the answer."""
        if event.system_fingerprint is not None or event.service_tier is not None:
            extras = self._beside()
            extras.system_fingerprint, extras.service_tier = event.system_fingerprint, event.service_tier

    def _said_once(self, completion: FullCompletion, choice: Choice) -> Extras | None:
        """All that was said beside an answer that came at once."""
        return told(completion, self._extras, completion.prompt_logprobs, completion.prompt_token_ids)

    def _beside(self) -> Extras:
        if self._extras is None:
            self._extras = Extras()
        return self._extras

    def _hear(self, choice: Choice, chunks: list[Chunk]) -> None:
        if choice.index or self._finish is not None:
            return  # another answer than the one that was asked for, or more of one that was over
        begun = len(chunks)
        if (delta := choice.delta or choice.message) is not None:
            if choice.logprobs is not None or self._unspoken:
                self._gather(choice, delta)
            if choice.logprobs is not None and choice.finish_reason == "stop":
                _leave_the_end_out(choice.logprobs, delta)
            text, thought = delta.content or "", delta.reasoning_content or delta.reasoning
            if text and self._cut is not None:
                text = self._cut.feed(text)
            if thought or delta.refusal or delta.tool_calls or delta.function_call or choice.logprobs is not None:
                self._say_all(text, thought or "", delta, choice.logprobs, chunks)
            elif text:
                chunks.append(Chunk(text=text))
        stopped_by = choice.stop_reason
        if isinstance(choice, FullChoice):
            if choice.token_ids:
                if len(chunks) == begun:
                    chunks.append(Chunk())
                chunks[-1].tokens = tuple(choice.token_ids)
            if choice.matched_stop is not None and not isinstance(choice.matched_stop, list):
                stopped_by = choice.matched_stop
        if choice.finish_reason:
            self._stop(choice.finish_reason, stopped_by)

    def _gather(self, choice: Choice, delta: Delta) -> None:
        """A token with which nothing was said waits for what comes next: it may be the one that ended the answer, which
        SGLang tells by itself."""
        told = [*self._unspoken, *((choice.logprobs.content if choice.logprobs is not None else None) or ())]
        spoken = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal or _calls(delta)
        waits = not (spoken or choice.finish_reason)
        self._unspoken, choice.logprobs = (told, None) if waits else ([], Logprobs(content=told))

    def _say_all(self, text: str, thought: str, delta: Delta, logprobs: Logprobs | None, chunks: list[Chunk]) -> None:
        if (called := _calls(delta)) and self._calls is None:
            self._calls = Calls()
        calls = () if self._calls is None else tuple(self._calls.pieces(called))
        if self._cut is not None and (thought or calls):
            text += self._cut.finish()
        chunk = Chunk(text=text, thought=thought, refusal=delta.refusal or "", calls=calls)
        if logprobs is not None and (most := self._sampling.logprobs) is not None:
            chunk.logprobs = tuple([logprob_of(one, most) for one in logprobs.content or ()])
        if text or thought or chunk.refusal or calls or chunk.logprobs:
            chunks.append(chunk)

    def _stop(self, reason: str, by: int | str | None) -> None:
        """`by`: the string or the token that ended the answer, if the engine tells."""
        self._finish = FINISHES.get(reason)
        if by is not None:
            self._beside().stop_reason = by
        if self._finish is None:
            self.fault = EngineFailed(f"{self._who} gave up on its answer: {reason[:80]!r}.")
        elif self._calls is not None and self._calls.nameless():
            self.fault = EngineFailed(f"{self._who} sent a tool call without a name.")


def chat_answers(who: str, said: bytes, sampling: Sampling) -> list[Chunk]:
    """All of an answer that came at once. Most are a text and nothing else, and cost least if that is seen first."""
    completion = FULL_COMPLETION.decode(said)
    if completion.error is None and completion.choices is not None and len(completion.choices) == 1:
        choice = completion.choices[0]
        message, finish = choice.message, FINISHES.get(choice.finish_reason or "")
        if message is not None and message.content and finish is not None and not (
            choice.delta or choice.logprobs or choice.token_ids
            or choice.stop_reason is not None or choice.matched_stop is not None
            or message.reasoning_content or message.reasoning or message.tool_calls or message.refusal
            or message.function_call
            or completion.prompt_logprobs is not None or completion.prompt_token_ids is not None
            or completion.kv_transfer_params is not None
        ):  # fmt: skip
            fingerprint, tier, extras = completion.system_fingerprint, completion.service_tier, None
            if fingerprint is not None or tier is not None:
                extras = Extras(system_fingerprint=fingerprint, service_tier=tier)
            return [Chunk(text=message.content, finish=finish, counts=counts(completion.usage), extras=extras)]
    return ChatReader.whole(who, completion, sampling)


def told(
    completion: Any, extras: Extras | None, prompt_logprobs: Any, prompt_token_ids: list[int] | None
) -> Extras | None:
    """With what was said beside an answer that came at once; most engines say nothing."""
    transfer, fingerprint = completion.kv_transfer_params, completion.system_fingerprint
    tier = completion.service_tier
    if (prompt_logprobs, prompt_token_ids, transfer, fingerprint, tier) == _UNSAID:
        return extras
    return Extras(
        stop_reason=None if extras is None else extras.stop_reason,
        prompt_logprobs=prompt_logprobs,
        prompt_token_ids=prompt_token_ids,
        kv_transfer_params=transfer,
        system_fingerprint=fingerprint,
        service_tier=tier,
    )


def _calls(delta: Delta) -> Sequence[ToolCall]:
    """With the one call of the time before there were several."""
    if delta.tool_calls is not None or delta.function_call is None:
        return delta.tool_calls or ()
    return (ToolCall(index=0, function=delta.function_call),)


def _leave_the_end_out(logprobs: Logprobs, said: Delta) -> None:
    """The token that ended the answer, which vLLM tells with the others, is no part of it."""
    told = logprobs.content
    if told and not (said.content or said.reasoning or said.reasoning_content or "").endswith(told[-1].token):
        told.pop()


def logprob_of(said: TokenLogprob, most: int) -> Logprob:
    top = [_top(candidate) for candidate in (said.top_logprobs or ())[:most]]
    return Logprob(token=said.token, bytes=_bytes(said), logprob=finite(said.logprob), top_logprobs=top)


def _top(candidate: Candidate) -> TopLogprob:
    return TopLogprob(token=candidate.token, bytes=_bytes(candidate), logprob=finite(candidate.logprob))


def _bytes(candidate: Candidate) -> list[int]:
    return list(candidate.token.encode()) if candidate.bytes is None else candidate.bytes


def finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
