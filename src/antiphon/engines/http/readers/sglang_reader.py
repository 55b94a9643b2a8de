"""Reads events of SGLang's /generate into Chunks.

By default every event repeats the output so far with its token ids and log probabilities; a server that was started
with --incremental-streaming-output sends only what is new. /server_info reports which.
"""

from collections.abc import Iterable, Sequence

from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, Sampling, TokenCounts
from antiphon.engines.clamp import clamp_logprob, clamp_token_count
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.readers.chat_reader import FINISHES
from antiphon.engines.http.readers.wire import FinishReason, GenerateEvent, LogprobTuple, MetaInfo
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob


class SglangReader:
    """Reader of SGLang's `/generate`."""

    def __init__(self, label: str, sampling: Sampling, *, cumulative: bool) -> None:
        """`cumulative`: each event repeats the output so far."""
        self._label = label
        self._top_count = sampling.logprobs
        self._cumulative = cumulative
        self._seen_characters = self._seen_tokens = self._seen_logprobs = 0  # amounts already returned
        self._started = False
        self.ended = False
        self.cut = False
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        return self.ended

    def feed(self, events: Iterable[GenerateEvent]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, event.error)
                break
            chunk = self._to_chunk(event)
            if (ending := event.meta_info.finish_reason) is not None:
                if (finish := self._parse_finish(ending)) is None:
                    break
                self._complete_chunk(chunk, finish, event.meta_info)
                chunks.append(chunk)
                break
            if chunk.text or chunk.tokens or chunk.extras:
                chunks.append(chunk)
        return chunks

    def end(self) -> list[Chunk]:
        if not self.ended:
            raise EngineFailed(f"{self._label} stopped in the middle of its answer.")
        return []

    def _to_chunk(self, event: GenerateEvent) -> Chunk:
        text, ids = event.text or "", event.output_ids or []
        if self._cumulative:
            text, ids = text[self._seen_characters :], ids[self._seen_tokens :]
        self._seen_characters += len(text)
        self._seen_tokens += len(ids)
        chunk = Chunk(text=text, tokens=tuple(ids))
        if self._top_count is not None:
            chunk.logprobs = self._to_logprobs(event.meta_info)
        if not self._started and event.prompt_token_ids:
            chunk.extras = EngineExtras(prompt_token_ids=event.prompt_token_ids)
        self._started = True
        return chunk

    def _to_logprobs(self, meta: MetaInfo) -> tuple[Logprob, ...]:
        entries, tops = meta.output_token_logprobs or [], meta.output_top_logprobs or []
        begin = self._seen_logprobs if self._cumulative else 0
        self._seen_logprobs = begin + len(entries[begin:])
        ending = meta.finish_reason
        if ending is not None and ending.type == "stop" and isinstance(ending.matched, int):
            entries = entries[:-1]  # the token that ended the output is not part of it
        return tuple([
            _to_logprob(one, tops[at] if at < len(tops) else None, self._top_count or 0)
            for at, one in enumerate(entries)
            if at >= begin
        ])  # fmt: skip

    def _parse_finish(self, ending: FinishReason) -> FinishKind | None:
        finish = FINISHES.get(ending.type)
        if finish is None:
            error = {"message": ending.message or ending.type[:80], "code": ending.status_code}
            self.fault = map_stream_error(self._label, error)
        return finish

    def _complete_chunk(self, chunk: Chunk, finish: FinishKind, meta: MetaInfo) -> None:
        self.ended = True
        input_tokens, output_tokens = clamp_token_count(meta.prompt_tokens), clamp_token_count(meta.completion_tokens)
        chunk.finish = finish
        chunk.counts = TokenCounts(
            input_tokens=input_tokens,
            cached_tokens=min(input_tokens, clamp_token_count(meta.cached_tokens)),
            output_tokens=output_tokens,
            reasoning_tokens=min(output_tokens, clamp_token_count(meta.reasoning_tokens)),
        )
        matched = meta.finish_reason.matched if meta.finish_reason is not None else None
        if isinstance(matched, int | str):
            chunk.extras = chunk.extras or EngineExtras()
            chunk.extras.stop_reason = matched


def _to_logprob(entry: LogprobTuple, top: Sequence[LogprobTuple] | None, top_count: int) -> Logprob:
    tops = [
        TopLogprob(token=one[2] or "", bytes=_token_bytes(one), logprob=clamp_logprob(one[0]))
        for one in (top or ())[:top_count]
    ]
    return Logprob(token=entry[2] or "", bytes=_token_bytes(entry), logprob=clamp_logprob(entry[0]), top_logprobs=tops)


def _token_bytes(entry: LogprobTuple) -> list[int]:
    return list((entry[2] or "").encode())
