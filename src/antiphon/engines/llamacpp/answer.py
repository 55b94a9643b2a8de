"""One answer as it comes in: events → chunks, and its end at a token of the client's choosing.

llama.cpp knows stop strings and the model's own end. Where an answer ends at another token, whoever reads stops reading
there, which cancels the rest; the last chunk is then ours to make.
"""

from collections.abc import Iterable, Sequence

from antiphon.core.prompt import Chunk, Counts, Extras, Sampling
from antiphon.engines.counted import believed
from antiphon.engines.llamacpp import wire


class Answer:
    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.cut = False  # it is over, whatever else may come
        self._sampling = sampling
        self._prompt = prompt
        self._stops = frozenset(sampling.stop_token_ids)
        self._tells_prompt = sampling.return_token_ids
        self._cached = 0
        self._said = 0  # tokens

    def take(self, events: Iterable[wire.Event]) -> list[Chunk]:
        """On the token path."""
        if self._stops:
            events = self._counted(events)
        chunks = wire.chunks(events, self._sampling)
        if self._stops:
            chunks = self._stopped(chunks)
        if self._tells_prompt and chunks:
            self._tells_prompt = False
            _extras(chunks[0]).prompt_token_ids = list(self._prompt)
        return chunks

    def _counted(self, events: Iterable[wire.Event]) -> list[wire.Event]:
        """Of the progress through the prompt: how much of it did not have to be computed."""
        events = list(events)
        for event in events:
            if event.prompt_progress is not None:
                self._cached = believed(event.prompt_progress.cache)
        return events

    def _stopped(self, chunks: list[Chunk]) -> list[Chunk]:
        for number, chunk in enumerate(chunks):
            self._said += len(chunk.tokens)
            if chunk.finish is None and (found := self._stops.intersection(chunk.tokens)):
                self.cut = True
                return [*chunks[:number], self._last(chunk, min(found))]
        return chunks

    def _last(self, chunk: Chunk, token: int) -> Chunk:
        counts = Counts(input_tokens=len(self._prompt), cached_tokens=self._cached, output_tokens=self._said)
        text = chunk.text if self._sampling.include_stop_str_in_output else ""
        return Chunk(text=text, tokens=chunk.tokens, finish="stop", counts=counts, extras=Extras(stop_reason=token))


def _extras(chunk: Chunk) -> Extras:
    if chunk.extras is None:
        chunk.extras = Extras()
    return chunk.extras
