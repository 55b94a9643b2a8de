"""Asking an engine without a server: prompts, work, and all of an answer in one value."""

import asyncio
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Chunk, Counts, Finish, Json, Prompt, Sampling, Work
from antiphon.engines.fake import FakeEngine

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: Json = {"type": "function", "function": {"name": "get_time"}}


class Said(Struct):
    """An answer, put together."""

    lists: list[list[Chunk]]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.lists for chunk in chunks]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def thought(self) -> str:
        return "".join(chunk.thought for chunk in self.chunks)

    @property
    def calls(self) -> dict[int, tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for piece in (piece for chunk in self.chunks for piece in chunk.calls):
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + piece.name, arguments + piece.arguments)
        return calls

    @property
    def finish(self) -> Finish | None:
        return self.chunks[-1].finish

    @property
    def counts(self) -> Counts:
        counts = self.chunks[-1].counts
        assert counts is not None
        return counts


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def tool(content: Any) -> Json:
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def chat(*messages: Json | str, **fields: Any) -> ChatPrompt:
    return ChatPrompt(tuple(user(message) if isinstance(message, str) else message for message in messages), **fields)


def work(prompt: Prompt | str, *, sampling: Sampling | None = None, **fields: Any) -> Work:
    if isinstance(prompt, str):
        prompt = chat(prompt)
    return Work(**{"model": "any", "prompt": prompt, "sampling": sampling or Sampling(), **fields})


async def ask(engine: FakeEngine, asked: Work | Prompt | str) -> Said:
    if not isinstance(asked, Work):
        asked = work(asked)
    async with asyncio.timeout(30), aclosing(engine.generate(asked)) as lists:
        return Said([chunks async for chunks in lists])
