"""Helpers that run requests against an embedded engine without a server, and read the slots of its child."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import (
    Chunk,
    Constraint,
    GenerationRequest,
    Prompt,
    Sampling,
    Segment,
    TextPrompt,
    TokenCounts,
    TokenPrompt,
)
from antiphon.engines.client import EngineClient
from antiphon.engines.connection import UnixAddress
from antiphon.engines.embedded.base import ChildEngine
from antiphon.engines.embedded.process import ChildProcess

POLL_SECONDS = 0.004
DEADLINE = 30.0


class GenerationResult(Struct):
    chunks: list[Chunk]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def last(self) -> Chunk:
        return self.chunks[-1]

    @property
    def counts(self) -> TokenCounts:
        assert self.last.counts is not None
        return self.last.counts


class Slot(Struct):
    id: int
    is_processing: bool
    n_prompt_tokens_processed: int = 0


SLOTS = Decoder(list[Slot])


def chat_prompt(*texts: str) -> TextPrompt:
    """Return alternating user and assistant turns as a ChatML prompt."""
    segments: list[Segment] = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        segments += [Segment(f"<|im_start|>{role}\n", True), Segment(text, False), Segment("<|im_end|>\n", True)]
    return TextPrompt((*segments, Segment("<|im_start|>assistant\n", True)))


def random_prompt(tokens: int) -> TokenPrompt:
    """Return random tokens, so that no prefix is cached."""
    return TokenPrompt(tuple(random.choices(range(100, 40_000), k=tokens)))


def make_request(
    prompt: Prompt | str, constraint: Constraint | None = None, model: str = "small", **sampling: Any
) -> GenerationRequest:
    """Build a request that is greedy unless a temperature or a seed is set, so that chance does not decide a test."""
    rendered = chat_prompt(prompt) if isinstance(prompt, str) else prompt
    if not sampling.keys() & {"temperature", "seed"}:
        sampling["temperature"] = 0.0
    return GenerationRequest(model=model, prompt=rendered, sampling=Sampling(**sampling), constraint=constraint)


async def run_generation(engine: ChildEngine, request: GenerationRequest, seconds: float = 90) -> GenerationResult:
    async with asyncio.timeout(seconds), aclosing(engine.generate(request)) as lists:
        return GenerationResult([chunk async for chunks in lists for chunk in chunks])


def get_child(engine: ChildEngine) -> ChildProcess:
    child = engine.loaded_models[0].child
    assert child is not None
    return child


class SlotMonitor:
    """Reads the slot states of a child; llama.cpp answers even while a batch is computed."""

    def __init__(self, engine: ChildEngine) -> None:
        self._client = EngineClient(UnixAddress(get_child(engine).socket), "The child")

    async def get_busy(self) -> list[Slot]:
        return [slot for slot in await self._client.get("/slots", SLOTS) if slot.is_processing]

    async def wait_all_free(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while await self.get_busy():  # noqa: ASYNC110 - another process cannot signal an Event
                await asyncio.sleep(POLL_SECONDS)

    async def wait_for_prefill(self, tokens: int, answer: asyncio.Task[Any]) -> bool:
        """Wait until this many prompt tokens are processed; return False if the answer comes before that is seen."""
        async with asyncio.timeout(DEADLINE):
            while not any(slot.n_prompt_tokens_processed >= tokens for slot in await self.get_busy()):
                if answer.done():
                    return False
                await asyncio.sleep(POLL_SECONDS)
        return True

    def close(self) -> None:
        self._client.close()
