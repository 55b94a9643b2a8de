"""What is seen first of an answer in one piece is what would be heard of it."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Chunk, Extras, Sampling
from antiphon.engines.http.readers.chat_reader import ChatReader, chat_answers
from antiphon.engines.http.readers.wire import FULL_COMPLETION
from antiphon.errors import EngineFailed

Json = dict[str, Any]

CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
# What may be said beside a text and its end, where, and how.
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


def some(fields: dict[str, list[Any]]) -> st.SearchStrategy[Json]:
    said = [(name, value) for name, values in fields.items() for value in values]
    return st.lists(st.sampled_from(said), max_size=2).map(dict)


def chosen(message: Json, choice: Json) -> Json:
    return {"message": {"content": "Hello", **message}, "finish_reason": "stop", **choice}


CHOICES = st.builds(chosen, some(MESSAGE), some(CHOICE))


def heard(read: Callable[[str, bytes, Sampling], list[Chunk]], said: Json) -> list[Chunk] | str:
    try:
        return read("The engine", json.dumps(said).encode(), Sampling(logprobs=1))
    except EngineFailed as error:
        return error.message


def wholly(who: str, said: bytes, sampling: Sampling) -> list[Chunk]:
    return ChatReader.whole(who, FULL_COMPLETION.decode(said), sampling)


@given(completion=some(COMPLETION), first=CHOICES, more=st.lists(CHOICES, max_size=2))
def test_a_text_and_nothing_else_is_heard_as_everything_is(completion: Json, first: Json, more: list[Json]) -> None:
    for choices in ([first], [first, *more]):
        said = {"choices": choices, **completion}
        assert heard(chat_answers, said) == heard(wholly, said)


def test_a_text_and_nothing_else_is_one_chunk_with_the_end() -> None:
    said = {"choices": [chosen({}, {})], "service_tier": "flex"}
    whole = heard(chat_answers, {**said, "usage": {"completion_tokens": 2}})
    assert isinstance(whole, list)
    assert [(chunk.text, chunk.finish, chunk.extras) for chunk in whole] == [
        ("Hello", "stop", Extras(service_tier="flex"))
    ]


def _heard(*choices: Json) -> list[Chunk]:
    """Of a stream in which these were told, one after the other."""
    reader = ChatReader("The engine", Sampling(logprobs=0), None, True)
    events = [FULL_COMPLETION.decode(json.dumps({"choices": [choice]})) for choice in choices]
    return [*reader.feed(events), *reader.end()]


def _piece(content: str | None, token: str) -> Json:
    return {"delta": {"content": content}, "logprobs": {"content": [{"token": token, "logprob": -1.0}]}}


def test_the_token_that_ended_an_answer_is_left_out_also_if_it_is_told_by_itself() -> None:
    """As SGLang does."""
    end = {"delta": {"reasoning_content": None}, "finish_reason": "stop", "matched_stop": 2}
    heard = _heard(_piece("Hi", "Hi"), _piece(None, "<|im_end|>"), end)
    assert [logprob.token for chunk in heard for logprob in chunk.logprobs] == ["Hi"]


def test_tokens_that_say_nothing_yet_are_told_with_what_they_became() -> None:
    """Half a character, or the last token that there was room for."""
    end = {"delta": {}, "finish_reason": "length"}
    heard = _heard(_piece("", "\ufffd"), _piece("é", "\ufffd"), _piece("", "x"), end)
    assert [(chunk.text, len(chunk.logprobs)) for chunk in heard] == [("é", 2), ("", 1), ("", 0)]
