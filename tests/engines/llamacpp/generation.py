"""Asking the embedded engine without a server, and looking into its slots."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, Constraint, Counts, Prompt, Sampling, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.client import Client, UnixAddress
from antiphon.engines.llamacpp.engine import LlamaCpp
from antiphon.engines.llamacpp.process import Child

LOOK_SECONDS = 0.004
DEADLINE = 30.0


class Said(Struct):
    chunks: list[Chunk]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def last(self) -> Chunk:
        return self.chunks[-1]

    @property
    def counts(self) -> Counts:
        assert self.last.counts is not None
        return self.last.counts


class Slot(Struct):
    id: int
    is_processing: bool
    n_prompt_tokens_processed: int = 0


SLOTS = Decoder(list[Slot])


def chat(*texts: str) -> TextPrompt:
    """Turns of user and assistant, as ChatML."""
    segments: list[Segment] = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        segments += [Segment(f"<|im_start|>{role}\n", True), Segment(text, False), Segment("<|im_end|>\n", True)]
    return TextPrompt((*segments, Segment("<|im_start|>assistant\n", True)))


def noise(tokens: int) -> TokenPrompt:
    """A prompt that nothing was cached of."""
    return TokenPrompt(tuple(random.choices(range(100, 40_000), k=tokens)))


def work(prompt: Prompt | str, constraint: Constraint | None = None, model: str = "small", **sampling: Any) -> Work:
    """Greedy where nothing else is asked for: what a model says by chance must not decide over a test."""
    asked = chat(prompt) if isinstance(prompt, str) else prompt
    if not sampling.keys() & {"temperature", "seed"}:
        sampling["temperature"] = 0.0
    return Work(model=model, prompt=asked, sampling=Sampling(**sampling), constraint=constraint)


async def ask(engine: LlamaCpp, asked: Work, seconds: float = 90) -> Said:
    async with asyncio.timeout(seconds), aclosing(engine.generate(asked)) as lists:
        return Said([chunk async for chunks in lists for chunk in chunks])


def child_of(engine: LlamaCpp) -> Child:
    child = engine.loaded[0].child
    assert child is not None
    return child


class Slots:
    """What llama.cpp says of its slots; a batch under way does not keep it from answering."""

    def __init__(self, engine: LlamaCpp) -> None:
        self._client = Client(UnixAddress(child_of(engine).socket), "llama.cpp")

    async def busy(self) -> list[Slot]:
        return [slot for slot in await self._client.get("/slots", SLOTS) if slot.is_processing]

    async def all_free(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while await self.busy():  # noqa: ASYNC110 - another process has no Event for us
                await asyncio.sleep(LOOK_SECONDS)

    async def prompt_under_way(self, tokens: int, answer: asyncio.Task[Any]) -> bool:
        """Until so many tokens of a prompt are done and there are more; False if its answer came before one looked."""
        async with asyncio.timeout(DEADLINE):
            while not any(slot.n_prompt_tokens_processed >= tokens for slot in await self.busy()):
                if answer.done():
                    return False
                await asyncio.sleep(LOOK_SECONDS)
        return True

    def close(self) -> None:
        self._client.close()
