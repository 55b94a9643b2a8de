"""The loop of the pipeline: requests are admitted, computed step by step, and their new tokens written as events."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from msgspec import Struct

from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.embedded.wire import LlamaCppError, LlamaCppEvent, PromptProgress, encode
from antiphon.engines.openvino.token_text import TokenTable
from antiphon.protocol.types.parts import Logprob

BLOCK_TOKENS = 32  # of OpenVINO's cache on CPUs
ADMISSION_SHARE = 0.9  # of the cache; running answers grow into the rest
LOOP_ROUNDS = 10  # of the event loop between two steps, enough to accept a connection and to read its request
SILENCE_SECONDS = 10.0  # after which a waiting client gets a sign of life


class CompletionBody(Struct):
    """Body of /completion."""

    prompt: list[int]
    config: dict[str, Any]  # fields of GenerationConfig
    structured: dict[str, str] = {}  # field of StructuredOutputConfig
    end_tokens: set[int] = set()  # control tokens that end the answer
    stop: list[str] = []
    visible_tokens: list[int] = []  # control tokens to include in the text
    beam: int = 0  # which result of a beam search to return, best first
    logprobs: bool = False


class RunningCompletion:
    """One generation, from its request to its last event."""

    def __init__(self, body: CompletionBody, config: Any, table: TokenTable, write: Callable[[bytes], None]) -> None:
        self.body = body
        self.config = config  # GenerationConfig
        self.handle: Any = None  # GenerationHandle, once it is admitted
        self.ended = asyncio.Event()
        self.output_tokens = 0
        self._table = table
        self._decoder = table.make_decoder(body.visible_tokens)
        self._stops = StopStringCutter(body.stop)
        self._write = write
        self._written_at = monotonic()

    @property
    def prompt_blocks(self) -> int:
        return math.ceil(len(self.body.prompt) / BLOCK_TOKENS)

    def feed(self, output: Any, finish: str) -> None:
        """Write the event of new tokens; `finish` is the name of the reason if these are the last ones."""
        tokens: list[int] = output.generated_ids
        self.output_tokens += len(tokens)
        ends = finish == "STOP" and tokens and tokens[-1] in self.body.end_tokens
        text = self._decoder.feed(tokens[:-1] if ends else tokens)
        if finish:
            text += self._decoder.finish()
        content = self._stops.feed(text)
        if self._stops.stopped:
            finish = "WORD"
        elif finish:
            content += self._stops.finish()
        event = LlamaCppEvent(content=content, tokens=tokens)
        if self.body.logprobs:
            event.completion_probabilities = self._list_logprobs(tokens[:-1] if ends else tokens, output)
            if finish:  # the last event has none
                self.write(event)
                event = LlamaCppEvent()
        if finish:
            self._end(event, {"STOP": "eos", "WORD": "word"}.get(finish, "limit"))
        elif tokens:
            self.write(event)

    def fail(self, message: str) -> None:
        self.write(LlamaCppEvent(error=LlamaCppError(message=message)))
        self.ended.set()

    def write(self, event: LlamaCppEvent) -> None:
        self._written_at = monotonic()
        self._write(b"data: " + encode(event) + b"\n\n")

    def show_life(self, now: float) -> None:
        """Write an event without content to a client that has waited for long, so that it waits on."""
        if now - self._written_at > SILENCE_SECONDS:
            self.write(LlamaCppEvent(prompt_progress=PromptProgress()))

    def _end(self, event: LlamaCppEvent, stop_type: str) -> None:
        event.stop, event.stop_type, event.stopping_word = True, stop_type, self._stops.stop
        event.tokens_evaluated, event.tokens_predicted = len(self.body.prompt), self.output_tokens
        self.write(event)
        self.ended.set()

    def _list_logprobs(self, tokens: list[int], output: Any) -> list[Logprob]:
        texts = map(self._table.get_bytes, tokens)
        return [
            Logprob(token=text.decode("utf-8", "replace"), bytes=list(text), logprob=logprob)
            for text, logprob in zip(texts, output.generated_log_probs, strict=False)
        ]


class GenerationLoop:
    """Computes completions with one pipeline. A request waits until the cache has room for its prompt."""

    def __init__(self, pipeline: Any, make_tensor: Callable[[list[int]], Any], cache_blocks: int) -> None:
        self._pipeline = pipeline
        self._make_tensor = make_tensor
        self._cache_blocks = cache_blocks
        self._waiting: deque[RunningCompletion] = deque()
        self._running: dict[int, RunningCompletion] = {}
        self._next_id = 0
        self._wake = asyncio.Event()

    def submit(self, completion: RunningCompletion) -> None:
        self._waiting.append(completion)
        self._wake.set()

    def cancel(self, completion: RunningCompletion) -> None:
        """Remove a completion. The pipeline frees its cache before the next step."""
        completion.ended.set()
        if completion.handle is None:
            if completion in self._waiting:
                self._waiting.remove(completion)
            return
        completion.handle.cancel()
        self._running = {id: running for id, running in self._running.items() if running is not completion}
        self._wake.set()

    def list_slots(self) -> list[dict[str, Any]]:
        """Describe the running completions as llama.cpp does at /slots, for tests and measurements."""
        return [
            {"id": id, "is_processing": True, "n_prompt_tokens_processed": len(running.body.prompt)}
            for id, running in self._running.items()
        ]

    async def run(self) -> None:
        while True:
            while not (self._waiting or self._pipeline.has_non_finished_requests()):
                self._wake.clear()
                await self._wake.wait()
            self._admit()
            self._pipeline.step()
            self._deliver()
            for _ in range(LOOP_ROUNDS):
                await asyncio.sleep(0)

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            completion = self._waiting.popleft()
            self._next_id += 1
            try:
                tensor = self._make_tensor(completion.body.prompt)
                completion.handle = self._pipeline.add_request(self._next_id, tensor, completion.config)
            except (RuntimeError, ValueError) as error:
                completion.fail(str(error).strip().splitlines()[-1])
            else:
                self._running[self._next_id] = completion

    def _fits(self, completion: RunningCompletion) -> bool:
        if not self._running:
            return True
        used: float = self._pipeline.get_metrics().cache_usage / 100 * self._cache_blocks
        promised = sum([running.prompt_blocks for running in self._running.values() if not running.output_tokens])
        return used + promised + completion.prompt_blocks <= ADMISSION_SHARE * self._cache_blocks

    def _deliver(self) -> None:
        now = monotonic()
        for id, completion in list(self._running.items()):
            if completion.handle.can_read():
                self._read(completion)
            elif completion.handle.get_status().name == "IGNORED":
                completion.fail("the cache of the engine is full")
            else:
                completion.show_life(now)
            if completion.ended.is_set():
                completion.handle.cancel()
                self._running.pop(id, None)
        for completion in self._waiting:
            completion.show_life(now)

    def _read(self, completion: RunningCompletion) -> None:
        outputs = sorted(completion.handle.read().values(), key=lambda output: -output.score)
        output = outputs[min(completion.body.beam, len(outputs) - 1)]
        finish = output.finish_reason.name
        completion.feed(output, "" if finish == "NONE" else finish)
