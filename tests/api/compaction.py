"""Conversations for the tests of compaction, requests that compact them, and access to the engine's prompt."""

import random
from typing import Any

from antiphon.core.prompt import ChatPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine
from tests.api.app import ApiServer
from tests.oracles.responses import check_compacted


def user_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def make_conversation(seed: int, turns: int = 14) -> list[dict[str, Any]]:
    """Generate a conversation with tool calls, long outputs, and user messages of different lengths."""
    chance, items = random.Random(seed), []
    for turn in range(turns):
        text = " ".join([f"word{chance.randrange(1000)}" for _ in range(chance.choice([3, 10, 30, 120]))])
        items.append(user_message(f"{turn}: {text}"))
        for call in range(chance.randrange(3)):
            name = f"c{turn}_{call}"
            items += [
                {"type": "function_call", "call_id": name, "name": "look", "arguments": f'{{"n": {turn}}}'},
                {"type": "function_call_output", "call_id": name, "output": "found it " * chance.randrange(20, 200)},
            ]
        items.append(assistant_message("so it is " * chance.randrange(20, 150)))
    return items


def list_user_texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"] for item in items if item.get("role") == "user"]


def list_retained_texts(compacted: dict[str, Any]) -> list[str]:
    """Return the texts of the user messages that a compaction retained."""
    return [item["content"][0]["text"] for item in compacted["output"][:-1]]


async def compact(server: ApiServer, **body: Any) -> dict[str, Any]:
    compacted: dict[str, Any] = await server.post_ok("responses/compact", {"model": "fake", **body})
    check_compacted(compacted)
    return compacted


async def count_input_tokens(server: ApiServer, items: Any, **body: Any) -> int:
    counted = await server.post_ok("responses/input_tokens", {"model": "fake", "input": items, **body})
    return int(counted["input_tokens"])


def get_last_messages(engine: FakeEngine) -> list[tuple[str, str]]:
    """Return role and content of each message in the last prompt."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], str(message["content"])) for message in prompt.messages]


class NonCountingEngine(FakeEngine):
    """An engine that cannot count the tokens of a prompt."""

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset(), can_count_tokens=False)
