"""Bombs for routes other than `/v1/responses`: other APIs, conversations, and token counting."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from drills.bombs.bodies import NOT_JSON, nested_lists
from drills.bombs.bomb import Bomb, post_bomb

_BAD_JSON_NAMES = {"empty", "cut", "latin-1", "bad escape", "open brackets", "closed brackets"}
ROUTES: dict[str, str] = {
    "/v1/chat/completions": '{"model":"fake","messages":',
    "/v1/completions": '{"model":"fake","prompt":',
    "/v1/messages": '{"model":"fake","max_tokens":9,"messages":',
    "/v1/messages/count_tokens": '{"model":"fake","messages":',
    "/v1/embeddings": '{"model":"fake","input":',
    "/v1/rerank": '{"model":"fake","query":"x","documents":',
    "/v1/score": '{"model":"fake","text_1":"x","text_2":',
    "/tokenize": '{"model":"fake","prompt":',
    "/detokenize": '{"model":"fake","tokens":',
    "/v1/conversations": '{"items":',
    "/v1/responses/input_tokens": '{"model":"fake","input":',
    "/v1/responses/compact": '{"model":"fake","input":',
}


def _tool(number: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}"}}


_CHAT = {"role": "user", "content": "x"}
OVERSIZED: dict[str, tuple[str, Callable[[], dict[str, Any]], str | None]] = {
    "10,001 messages of a chat": ("/v1/chat/completions", lambda: {"messages": [_CHAT] * 10_001}, "messages"),
    "10,001 messages": ("/v1/messages", lambda: {"max_tokens": 9, "messages": [_CHAT] * 10_001}, None),
    "513 tools of a chat": (
        "/v1/chat/completions",
        lambda: {"messages": [_CHAT], "tools": [_tool(n) for n in range(513)]},
        "tools",
    ),
    "129 prompts": ("/v1/completions", lambda: {"prompt": ["x"] * 129}, "prompt"),
    "20 prompts of 16 choices": ("/v1/completions", lambda: {"prompt": ["x"] * 20, "n": 16}, None),
    "2,049 inputs": ("/v1/embeddings", lambda: {"input": ["x"] * 2049}, "input"),
    "100,000 documents": ("/v1/rerank", lambda: {"query": "x", "documents": ["x"] * 100_000}, "documents"),
    "21 items": ("/v1/conversations", lambda: {"items": [_CHAT] * 21}, "items"),
    "17 pairs of metadata": ("/v1/conversations", lambda: {"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    "10,001 items to count": ("/v1/responses/input_tokens", lambda: {"input": [_CHAT] * 10_001}, "input"),
    "10,001 items to compact": ("/v1/responses/compact", lambda: {"input": [_CHAT] * 10_001}, "input"),
    "a million and one characters": ("/tokenize", lambda: {"prompt": "🏻" * 1_000_001}, None),
    "a million blanks": ("/tokenize", lambda: {"prompt": " " * 1_000_001}, None),
    "150,000 tokens": ("/detokenize", lambda: {"tokens": [2**31 - 1] * 150_000}, None),
    "a cache key without end": ("/v1/chat/completions", lambda: {"messages": [_CHAT], "user": "u" * 100_000}, None),
    "five stops": ("/v1/chat/completions", lambda: {"messages": [_CHAT], "stop": [*"abcde"]}, "stop"),
    "logit_bias of 90,000": (
        "/v1/chat/completions",
        lambda: {"messages": [_CHAT], "logit_bias": {str(n): 1 for n in range(90_000)}},
        "logit_bias",
    ),
    "1,001 values of a choice": (
        "/v1/chat/completions",
        lambda: {"messages": [_CHAT], "guided_choice": [f"c{n}" for n in range(10_001)]},
        None,
    ),
}  # fmt: skip


def routes() -> Iterator[Bomb]:
    for path, prefix in ROUTES.items():
        options = {"anthropic": "/messages" in path}
        for name in _BAD_JSON_NAMES - ({"empty"} if path == "/v1/conversations" else set()):  # its body is optional
            yield post_bomb(f"{path}: {name}", NOT_JSON[name], path, answers=(400, 404), **options)
        for depth in (65, 20_000):
            sent = prefix.encode() + nested_lists(depth) + b"}"
            yield post_bomb(f"{path}: {depth} deep", sent, path, answers=(400, 404), **options)
        for value in ("7", "{}", "[{}]", "[7.5]", "[null]", '[{"role":7}]'):
            sent = f"{prefix}{value}}}".encode()
            yield post_bomb(f"{path}: {value}", sent, path, answers=(200, 400, 404), reaches=True, **options)
        yield post_bomb(f"{path}: a flood", partial(_make_flood, prefix), path, answers=(400, 404), **options)
    for name, (path, make, param) in OVERSIZED.items():
        fields = {"param": param, "anthropic": "/messages" in path}
        yield post_bomb(name, partial(_encode_body, make), path, answers=(400, 404), **fields)


def _make_flood(prefix: str) -> bytes:
    return prefix.encode() + b"[" + b'"",' * 300_000 + b'""]}'


def _encode_body(make: Callable[[], dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"model": "fake", **make()})
