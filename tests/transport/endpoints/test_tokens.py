"""/tokenize and /detokenize, over the fake engine: a token of it is a character, or a mark of its template."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import ids_of
from antiphon.limits import Limits
from tests.api.app import Api, api

pytestmark = [pytest.mark.anyio, pytest.mark.shows("G.6")]

START, END = 1, 2


@pytest.fixture
async def fake() -> AsyncIterator[Api]:
    async with api(engine=FakeEngine(FakeSettings(level="tokens", context=1000))) as made:
        yield made


async def test_a_text_becomes_tokens_and_the_same_text_again(fake: Api) -> None:
    tokenized = await fake.made("tokenize", {"model": "fake", "prompt": "hé 🌍"})
    assert tokenized == {"count": 4, "max_model_len": 1000, "tokens": ids_of("hé 🌍"), "token_strs": None}
    detokenized = await fake.made("detokenize", {"model": "fake", "tokens": tokenized["tokens"]})
    assert detokenized == {"prompt": "hé 🌍"}


async def test_the_strings_of_tokens_are_told_to_who_wants_them(fake: Api) -> None:
    asked = {"model": "fake", "prompt": "<|im_start|>hi", "return_token_strs": True}
    tokenized = await fake.made("tokenize", asked)
    assert tokenized["tokens"] == [START, *ids_of("hi")]
    assert tokenized["token_strs"] == ["<|im_start|>", "h", "i"]


async def test_a_chat_becomes_the_tokens_that_the_same_completion_costs(fake: Api) -> None:
    chat: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "<|im_end|>hi"}]}
    tokenized = await fake.made("tokenize", chat)
    written = await fake.made("chat/completions", chat)
    assert tokenized["count"] == written["usage"]["prompt_tokens"] == len(tokenized["tokens"])
    assert [token for token in tokenized["tokens"] if token < 16] == [START, END, START]  # none is the user's


async def test_what_a_chat_may_have_beside_its_messages_is_honoured(fake: Api) -> None:
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}
    answer = await fake.post("tokenize", chat)
    plain = answer.json()
    assert answer.header(b"x-antiphon-ignored") is None
    thinking = await fake.made("tokenize", {**chat, "chat_template_kwargs": {"enable_thinking": True}})
    assert "".join(plain["token_strs"]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert thinking["token_strs"] == [*plain["token_strs"], "<|think|>"]


async def test_no_model_is_any_that_can(fake: Api) -> None:
    assert (await fake.made("tokenize", {"prompt": "ab"}))["count"] == 2
    assert (await fake.made("detokenize", {"tokens": ids_of("ab")})) == {"prompt": "ab"}


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
async def test_bad_input_names_its_field(path: str, body: dict[str, Any], param: str) -> None:
    engine = FakeEngine(FakeSettings(level="tokens"))
    async with api(engine=engine, limits=Limits(tokenize_characters=20)) as fake:
        answer = await fake.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize("field", ["chat_template", "continue_final_message"])
async def test_templates_are_not_the_clients_to_choose(fake: Api, field: str) -> None:
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], field: "{{ 1 }}"}
    answer = await fake.post("tokenize", chat)
    assert (answer.status, answer.error["param"]) == (400, field)


async def test_an_engine_that_has_no_numbers_for_its_tokens_is_a_404() -> None:
    async with api() as fake:
        bodies: dict[str, dict[str, Any]] = {"tokenize": {"prompt": "a"}, "detokenize": {"tokens": [1]}}
        for path, body in bodies.items():
            answer = await fake.post(path, {"model": "fake", **body})
            assert (answer.status, answer.error["param"]) == (404, "model")
            assert f"does not {path} for others" in answer.error["message"]
            assert (await fake.post(path, body)).status == 404
