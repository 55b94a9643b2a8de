"""Reading of unstreamed chat completions: the fast path for plain text against the full reader."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Chunk, EngineExtras, Sampling
from antiphon.engines.http.readers.whole_response import parse_chat_response, read_chat_completion
from antiphon.engines.http.readers.wire import FULL_COMPLETION
from antiphon.errors import EngineFailed

Json = dict[str, Any]

CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
# Fields beside a text and its finish reason, by the object that holds them, with possible values.
MESSAGE: dict[str, list[Any]] = {
    "content": [None, ""],
    "reasoning_content": [None, "", "Hm."],
    "reasoning": [None, "", "Hm."],
    "refusal": [None, "", "No."],
    "tool_calls": [None, [], [CALL], [{"function": {}}]],
    "function_call": [None, CALL["function"]],
}
CHOICE: dict[str, list[Any]] = {
    "index": [None, 0, 1],
    "message": [None],
    "finish_reason": [None, "", "length", "tool_calls", "tired"],
    "stop_reason": [None, "END", 0, ""],
    "matched_stop": [None, "END", 0, [1]],
    "token_ids": [None, [], [1, 2]],
    "logprobs": [None, {}, {"content": [{"token": "a", "logprob": -1.0}]}],
    "delta": [None, {}, {"content": "Hi"}],
}
COMPLETION: dict[str, list[Any]] = {
    "choices": [None, []],
    "usage": [None, {}, {"prompt_tokens": 3, "completion_tokens": -1}, {"prompt_tokens_details": {"cached_tokens": 2}}],
    "error": [None, {"message": "boom"}],
    "system_fingerprint": [None, "fp"],
    "service_tier": [None, "flex"],
    "prompt_token_ids": [None, [], [1]],
    "prompt_logprobs": [None, []],
    "kv_transfer_params": [None, {"a": 1}],
}


def draw_fields(fields: dict[str, list[Any]]) -> st.SearchStrategy[Json]:
    pairs = [(name, value) for name, values in fields.items() for value in values]
    return st.lists(st.sampled_from(pairs), max_size=2).map(dict)


def make_choice(message: Json, choice: Json) -> Json:
    return {"message": {"content": "Hello", **message}, "finish_reason": "stop", **choice}


CHOICES = st.builds(make_choice, draw_fields(MESSAGE), draw_fields(CHOICE))


def parse(parser: Callable[[str, bytes, Sampling], list[Chunk]], completion: Json) -> list[Chunk] | str:
    try:
        return parser("The engine", json.dumps(completion).encode(), Sampling(logprobs=1))
    except EngineFailed as error:
        return error.message


def read_fully(label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
    return read_chat_completion(label, FULL_COMPLETION.decode(data), sampling)


@given(completion=draw_fields(COMPLETION), first=CHOICES, more=st.lists(CHOICES, max_size=2))
def test_the_fast_path_for_plain_text_gives_the_same_result_as_the_full_reader(
    completion: Json, first: Json, more: list[Json]
) -> None:
    for choices in ([first], [first, *more]):
        body = {"choices": choices, **completion}
        assert parse(parse_chat_response, body) == parse(read_fully, body)


def test_plain_text_is_one_chunk_with_the_finish() -> None:
    body = {"choices": [make_choice({}, {})], "service_tier": "flex"}
    chunks = parse(parse_chat_response, {**body, "usage": {"completion_tokens": 2}})
    assert isinstance(chunks, list)
    assert [(chunk.text, chunk.finish, chunk.extras) for chunk in chunks] == [
        ("Hello", "stop", EngineExtras(service_tier="flex"))
    ]
