"""Hostile requests to chat completions and completions: each gets a 200 or a well-formed 4xx, never a 5xx."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.completions import CreateCompletion
from tests.api.app import run_api
from tests.oracles.chat import check_chat, check_completion, parse_chunks

pytestmark = pytest.mark.anyio

TEXTS = st.text(max_size=12)
SPECIAL = st.sampled_from([
    "user", "assistant", "tool", "function", "system", "text", "image_url", "file", "refusal", "c1", "json_schema",
    "object", "string", "required", "auto", "none", "data:image/png;base64,AA==", "a+", 'root ::= "a"', "{}", "\ud800",
    "custom", "grammar", "structural_tag",
])  # fmt: skip
NUMBERS = st.integers(-3, 40) | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 1e300, 0.5])
NAMES = st.sampled_from([
    "role", "content", "type", "text", "image_url", "url", "file", "file_data", "tool_calls", "tool_call_id", "id",
    "function", "name", "arguments", "custom", "input", "parameters", "json_schema", "schema", "properties", "format",
    "include_usage", "regex", "choice", "json", "grammar", "definition", "syntax", "refusal", "reasoning", "mode",
    "tools", "allowed_tools", "structures", "triggers", "pattern",
])  # fmt: skip
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS | SPECIAL
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXTS, inner, max_size=4),
    max_leaves=10,
)
MESSAGE = st.fixed_dictionaries(
    {"role": SPECIAL | st.just("user")},
    optional={
        "content": TEXTS | st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=3),
        "tool_calls": st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=2),
        "tool_call_id": SPECIAL,
        "function_call": st.dictionaries(NAMES, VALUES, max_size=2),
        "reasoning": TEXTS,
    },
)
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=4)},
    optional={name: VALUES for name in CreateChat.__struct_fields__ if name not in ("messages", "model")},
)
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": TEXTS | VALUES | st.lists(st.integers(90, 120), max_size=4)},
    optional={name: VALUES for name in CreateCompletion.__struct_fields__ if name not in ("prompt", "model")},
)


async def check_answer(path: str, body: dict[str, Any]) -> None:
    async with run_api() as server:
        sent = json.dumps({"model": "fake", **body}).encode()
        answer = await server.post(path, sent)
    assert answer.status in (200, 400), answer.body
    if answer.status == 400:
        assert answer.error["type"] == "invalid_request_error"
    elif body.get("stream") is True:
        assert parse_chunks(answer.body)
    elif path == "completions":
        check_completion(answer.json())
    else:
        check_chat(answer.json())


@given(body=CHATS)
async def test_any_chat_request_gets_a_200_or_a_400(body: dict[str, Any]) -> None:
    await check_answer("chat/completions", body)


@given(body=COMPLETIONS)
async def test_any_completion_request_gets_a_200_or_a_400(body: dict[str, Any]) -> None:
    await check_answer("completions", body)


NUMERIC_FIELDS = ("n", "best_of", "top_logprobs", "logprobs", "max_tokens", "seed", "priority", "min_tokens", "top_k")
HOSTILE_NUMBERS = (b"-1", b"0", b"2147483647", b"2147483648", b"9223372036854775808", b"1e400", b"NaN", b"1.5")


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_hostile_numbers_are_accepted_or_rejected_by_name(path: str) -> None:
    async with run_api() as server:
        for name, number in product(NUMERIC_FIELDS, HOSTILE_NUMBERS):
            fields = b'"model":"fake","messages":[{"role":"user","content":"x"}],"prompt":"x"'
            answer = await server.post(path, b'{%b,"%b":%b}' % (fields, name.encode(), number))
            assert answer.status in (200, 400), answer.body
            if answer.status == 400:
                assert answer.error["param"] in (name, None)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_min_tokens_above_the_output_limit_is_rejected(path: str) -> None:
    fields = b'"model":"fake","messages":[{"role":"user","content":"x"}],"prompt":"x"'
    async with run_api() as server:
        for bounds in (b'"min_tokens":2147483647', b'"min_tokens":17,"max_tokens":16'):
            answer = await server.post(path, b"{%b,%b}" % (fields, bounds))
            assert (answer.status, answer.error["param"]) == (400, "min_tokens")
        assert (await server.post(path, b'{%b,"min_tokens":16,"max_tokens":16}' % fields)).status == 200
