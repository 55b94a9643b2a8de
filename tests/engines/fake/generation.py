"""Helpers that run requests against a fake engine without a server: prompts, requests and the collected result."""

import asyncio
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Chunk, FinishKind, GenerationRequest, Json, Prompt, Sampling, TokenCounts
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


class GenerationResult(Struct):
    """All chunks of an answer, with its text, reasoning and tool calls joined."""

    lists: list[list[Chunk]]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.lists for chunk in chunks]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reasoning(self) -> str:
        return "".join(chunk.reasoning for chunk in self.chunks)

    @property
    def calls(self) -> dict[int, tuple[str, str]]:
        calls: dict[int, tuple[str, str]] = {}
        for piece in (piece for chunk in self.chunks for piece in chunk.calls):
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + piece.name, arguments + piece.arguments)
        return calls

    @property
    def finish(self) -> FinishKind | None:
        return self.chunks[-1].finish

    @property
    def counts(self) -> TokenCounts:
        counts = self.chunks[-1].counts
        assert counts is not None
        return counts


def user_message(content: Any) -> Json:
    return {"role": "user", "content": content}


def tool_message(content: Any) -> Json:
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def chat_prompt(*messages: Json | str, **fields: Any) -> ChatPrompt:
    return ChatPrompt(
        tuple(user_message(message) if isinstance(message, str) else message for message in messages), **fields
    )


def make_request(prompt: Prompt | str, *, sampling: Sampling | None = None, **fields: Any) -> GenerationRequest:
    if isinstance(prompt, str):
        prompt = chat_prompt(prompt)
    return GenerationRequest(**{"model": "any", "prompt": prompt, "sampling": sampling or Sampling(), **fields})


async def run_generation(engine: FakeEngine, request: GenerationRequest | Prompt | str) -> GenerationResult:
    if not isinstance(request, GenerationRequest):
        request = make_request(request)
    async with asyncio.timeout(30), aclosing(engine.generate(request)) as lists:
        return GenerationResult([chunks async for chunks in lists])
