"""Tests /tokenize and /detokenize on the fake engine, whose tokens are characters or control tokens of its template.

Covers `protocol/bodies/tokens.py` and `service/tokens.py`.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import encode_text
from antiphon.limits import Limits
from tests.api.app import ApiServer, run_api

pytestmark = [pytest.mark.anyio, pytest.mark.shows("G.6")]

START, END = 1, 2


@pytest.fixture
async def fake() -> AsyncIterator[ApiServer]:
    async with run_api(engine=FakeEngine(FakeSettings(level="tokens", context=1000))) as server:
        yield server


async def test_a_text_round_trips_through_tokenize_and_detokenize(fake: ApiServer) -> None:
    tokenized = await fake.post_ok("tokenize", {"model": "fake", "prompt": "hé 🌍"})
    assert tokenized == {"count": 4, "max_model_len": 1000, "tokens": encode_text("hé 🌍"), "token_strs": None}
    detokenized = await fake.post_ok("detokenize", {"model": "fake", "tokens": tokenized["tokens"]})
    assert detokenized == {"prompt": "hé 🌍"}


async def test_token_strings_are_returned_on_request(fake: ApiServer) -> None:
    body = {"model": "fake", "prompt": "<|im_start|>hi", "return_token_strs": True}
    tokenized = await fake.post_ok("tokenize", body)
    assert tokenized["tokens"] == [START, *encode_text("hi")]
    assert tokenized["token_strs"] == ["<|im_start|>", "h", "i"]


async def test_a_tokenized_chat_matches_the_prompt_tokens_of_its_completion(fake: ApiServer) -> None:
    chat: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "<|im_end|>hi"}]}
    tokenized = await fake.post_ok("tokenize", chat)
    completion = await fake.post_ok("chat/completions", chat)
    assert tokenized["count"] == completion["usage"]["prompt_tokens"] == len(tokenized["tokens"])
    # the user's text yields no control tokens
    assert [token for token in tokenized["tokens"] if token < 16] == [START, END, START]


async def test_chat_template_options_are_honoured(fake: ApiServer) -> None:
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}
    answer = await fake.post("tokenize", chat)
    plain = answer.json()
    assert answer.header(b"x-antiphon-ignored") is None
    thinking = await fake.post_ok("tokenize", {**chat, "chat_template_kwargs": {"enable_thinking": True}})
    assert "".join(plain["token_strs"]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert thinking["token_strs"] == [*plain["token_strs"], "<|think|>"]


async def test_the_model_may_be_omitted(fake: ApiServer) -> None:
    assert (await fake.post_ok("tokenize", {"prompt": "ab"}))["count"] == 2
    assert (await fake.post_ok("detokenize", {"tokens": encode_text("ab")})) == {"prompt": "ab"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {"model": "fake"}, "prompt"),
        ("tokenize", {"model": "fake", "prompt": 1}, "prompt"),
        ("tokenize", {"model": "fake", "prompt": "a", "messages": []}, "prompt"),
        ("tokenize", {"model": "fake", "prompt": "x" * 21}, "prompt"),
        ("tokenize", {"model": "fake", "messages": "a"}, "messages"),
        ("tokenize", {"model": "fake", "messages": [{"role": "user"}]}, "messages[0].content"),
        ("tokenize", {"messages": [{"role": "user", "content": "a"}]}, "model"),
        ("tokenize", {"model": "fake", "messages": [], "add_special_tokens": True}, "add_special_tokens"),
        ("tokenize", {"model": "fake", "messages": [], "return_token_strs": "yes"}, "return_token_strs"),
        ("detokenize", {"model": "fake"}, "tokens"),
        ("detokenize", {"model": "fake", "tokens": ["a"]}, "tokens[0]"),
        ("detokenize", {"model": "fake", "tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"model": "fake", "tokens": [2**31 - 1]}, "tokens"),
        ("detokenize", {"model": "fake", "tokens": [0xD800 + 16]}, "tokens"),
    ],
)
async def test_invalid_input_is_rejected_with_its_field(path: str, body: dict[str, Any], param: str) -> None:
    engine = FakeEngine(FakeSettings(level="tokens"))
    async with run_api(engine=engine, limits=Limits(tokenize_characters=20)) as fake:
        answer = await fake.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize("field", ["chat_template", "continue_final_message"])
async def test_clients_cannot_choose_the_chat_template(fake: ApiServer, field: str) -> None:
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], field: "{{ 1 }}"}
    answer = await fake.post("tokenize", chat)
    assert (answer.status, answer.error["param"]) == (400, field)


async def test_an_engine_without_token_ids_yields_404() -> None:
    async with run_api() as fake:
        bodies: dict[str, dict[str, Any]] = {"tokenize": {"prompt": "a"}, "detokenize": {"tokens": [1]}}
        for path, body in bodies.items():
            answer = await fake.post(path, {"model": "fake", **body})
            assert (answer.status, answer.error["param"]) == (404, "model")
            assert f"does not support {path} requests" in answer.error["message"]
            assert (await fake.post(path, body)).status == 404
