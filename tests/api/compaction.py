"""Long conversations, what becomes of them when they are compacted, and what a model is told."""

import random
from typing import Any

from antiphon.core.prompt import ChatPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine
from tests.api.app import Api
from tests.oracles.responses import check_compacted


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def conversation(seed: int, turns: int = 14) -> list[dict[str, Any]]:
    """With calls, long outputs, and users who say little or much."""
    chance, items = random.Random(seed), []
    for turn in range(turns):
        words = " ".join([f"word{chance.randrange(1000)}" for _ in range(chance.choice([3, 10, 30, 120]))])
        items.append(user(f"{turn}: {words}"))
        for call in range(chance.randrange(3)):
            name = f"c{turn}_{call}"
            items += [
                {"type": "function_call", "call_id": name, "name": "look", "arguments": f'{{"n": {turn}}}'},
                {"type": "function_call_output", "call_id": name, "output": "found it " * chance.randrange(20, 200)},
            ]
        items.append(assistant("so it is " * chance.randrange(20, 150)))
    return items


def users_of(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"] for item in items if item.get("role") == "user"]


def kept(compacted: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in compacted["output"][:-1]]


async def compact(server: Api, **body: Any) -> dict[str, Any]:
    compacted: dict[str, Any] = await server.made("responses/compact", {"model": "fake", **body})
    check_compacted(compacted)
    return compacted


async def tokens(server: Api, items: Any, **body: Any) -> int:
    counted = await server.made("responses/input_tokens", {"model": "fake", "input": items, **body})
    return int(counted["input_tokens"])


def heard(engine: FakeEngine) -> list[tuple[str, str]]:
    """What the model was told last, message by message."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], str(message["content"])) for message in prompt.messages]


class Untold(FakeEngine):
    """Does not tell how many tokens a prompt has."""

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset(), counts=False)
