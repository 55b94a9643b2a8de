"""Reading of completions: raw ones in their three formats, from golden recordings, unstreamed ones, and logprobs.

The result does not depend on how the bytes are split, and malformed bytes raise a typed error.
"""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Chunk, EngineExtras, Sampling, TokenPrompt
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.sglang import Sglang
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.readers.completion_reader import ChatCompletionReader, TextCompletionReader
from antiphon.engines.http.readers.wire import COMPLETION
from antiphon.errors import AntiphonError, BadRequest, EngineFailed
from tests.engines.http.stubs.generation import GenerationResult, make_request, run_generation
from tests.engines.http.stubs.mutations import mutate, split_bytes
from tests.engines.http.stubs.scripted_network import CHUNKED_HEAD, http_chunk, make_scripted_engine
from tools.golden import GOLDEN, load_recording

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

MUTATIONS = 400
ENGINE_CLASSES: dict[str, type[HttpEngine]] = {"vllm": Vllm, "sglang": Sglang, "llamacpp-server": LlamaCppServer}
REQUEST = make_request(prompt=TokenPrompt((1, 2, 3)), max_tokens=8, logprobs=2)
END = b"0\r\n\r\n"


def load_raw_response(name: str) -> bytes:
    """Return the recorded response to a raw prompt, as it was on the wire."""
    answers = [one.answer for one in load_recording(GOLDEN / name / "tokens-logprobs.json").exchanges]
    (stream,) = [answer for answer in answers if "text/event-stream" in answer]
    return stream.encode()


def summarise(result: GenerationResult) -> tuple[object, ...]:
    last = result.chunks[-1] if result.chunks else None
    tokens = [token for chunk in result.chunks for token in chunk.tokens]
    logprobs = [one.token for chunk in result.chunks for one in chunk.logprobs]
    kind = None if result.error is None else type(result.error)
    return result.text, tokens, logprobs, last and last.finish, last and last.counts, kind


@pytest.mark.shows("C.28")
@pytest.mark.seeds(1)
@pytest.mark.parametrize("name", ENGINE_CLASSES)
async def test_mutated_raw_completions_neither_crash_nor_hang(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    recording = load_raw_response(name)
    for _ in range(MUTATIONS):
        data = mutate(recording, rng)
        result = await run_generation(make_scripted_engine(ENGINE_CLASSES[name], data), REQUEST)
        positions = [rng.randrange(len(data) + 1) for _ in range(6)] if data else []
        assert summarise(
            await run_generation(make_scripted_engine(ENGINE_CLASSES[name], *split_bytes(data, positions)), REQUEST)
        ) == summarise(result)
        assert (result.error is None) is bool(result.chunks and result.chunks[-1].finish)


@pytest.mark.parametrize("name", ENGINE_CLASSES)
async def test_a_truncated_completion_is_an_error(name: str) -> None:
    recording = load_raw_response(name)
    for end in (
        recording.index(b"data:"),
        recording.rindex(b"data:", 0, recording.rindex(b"data:")),
        len(recording) // 2,
    ):
        result = await run_generation(make_scripted_engine(ENGINE_CLASSES[name], recording[:end]), REQUEST)
        assert isinstance(result.error, EngineFailed)


@pytest.mark.parametrize("name", ENGINE_CLASSES)
async def test_an_error_in_the_middle_of_a_completion_is_raised(name: str) -> None:
    recording = load_raw_response(name)
    body = recording.partition(b"\r\n\r\n")[2]
    size, _, chunk_data = body.partition(b"\r\n")
    first = chunk_data[: int(size, 16)]
    for code, error in ((500, EngineFailed), (400, BadRequest)):
        kind = b"server_error" if code == 500 else b"invalid_request_error"
        fault = b'data: {"error":{"message":"boom","type":"%s","code":%d}}\n\n' % (kind, code)
        result = await run_generation(
            make_scripted_engine(ENGINE_CLASSES[name], CHUNKED_HEAD, http_chunk(first), http_chunk(fault), END), REQUEST
        )
        assert type(result.error) is error
        assert "boom" in str(result.error)
        assert not any(chunk.finish for chunk in result.chunks)


def test_the_log_probability_of_the_end_token_is_dropped() -> None:
    logprobs = {"tokens": ["a", "<end>"], "token_logprobs": [-0.5, -0.1], "top_logprobs": [{"a": -0.5}, None]}
    choice = {"index": 0, "text": "a", "token_ids": [5, 2], "logprobs": logprobs, "finish_reason": "stop"}
    events = [COMPLETION.decode(msgspec.json.encode({"choices": [choice]}))]
    (chunk,) = TextCompletionReader("It", Sampling(logprobs=1)).feed(events)
    assert [one.token for one in chunk.logprobs] == ["a"]
    assert chunk.tokens == (5, 2)


def _read_stream(*choices: Json) -> list[Chunk]:
    """Read a stream of these choices, one per event."""
    reader = ChatCompletionReader("The engine", Sampling(logprobs=0))
    events = [COMPLETION.decode(json.dumps({"choices": [choice]})) for choice in choices]
    return [*reader.feed(events), *reader.end()]


def _make_delta(content: str | None, token: str) -> Json:
    return {"delta": {"content": content}, "logprobs": {"content": [{"token": token, "logprob": -1.0}]}}


def test_an_end_token_in_an_event_of_its_own_is_dropped_from_the_logprobs() -> None:
    """SGLang sends it like this."""
    end = {"delta": {"reasoning_content": None}, "finish_reason": "stop", "matched_stop": 2}
    chunks = _read_stream(_make_delta("Hi", "Hi"), _make_delta(None, "<|im_end|>"), end)
    assert [logprob.token for chunk in chunks for logprob in chunk.logprobs] == ["Hi"]


def test_the_logprobs_of_tokens_without_text_are_sent_with_the_next_chunk() -> None:
    """Such as half a character, or the last token within the limit."""
    end = {"delta": {}, "finish_reason": "length"}
    chunks = _read_stream(_make_delta("", "\ufffd"), _make_delta("é", "\ufffd"), _make_delta("", "x"), end)
    assert [(chunk.text, len(chunk.logprobs)) for chunk in chunks] == [("é", 2), ("", 1), ("", 0)]


CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
# Fields beside a text and its finish reason, by the object that holds them, with possible values.
MESSAGE_FIELDS: dict[str, list[Any]] = {
    "content": [None, ""],
    "reasoning_content": [None, "", "Hm."],
    "reasoning": [None, "", "Hm."],
    "refusal": [None, "", "No."],
    "tool_calls": [None, [], [CALL], [{"function": {}}]],
    "function_call": [None, CALL["function"]],
}
CHOICE_FIELDS: dict[str, list[Any]] = {
    "index": [None, 0, 1],
    "message": [None],
    "finish_reason": [None, "", "length", "tool_calls", "tired"],
    "stop_reason": [None, "END", 0, ""],
    "matched_stop": [None, "END", 0, [1]],
    "token_ids": [None, [], [1, 2]],
    "logprobs": [None, {}, {"content": [{"token": "a", "logprob": -1.0}]}],
    "delta": [None, {}, {"content": "Hi"}],
}
COMPLETION_FIELDS: dict[str, list[Any]] = {
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


CHOICES = st.builds(make_choice, draw_fields(MESSAGE_FIELDS), draw_fields(CHOICE_FIELDS))


def read_whole(completion: Json) -> list[Chunk]:
    reader = ChatCompletionReader("The engine", Sampling(logprobs=1))
    return reader.read_whole(COMPLETION.decode(json.dumps(completion)))


@given(completion=draw_fields(COMPLETION_FIELDS), choices=st.lists(CHOICES, min_size=1, max_size=3))
def test_an_unstreamed_response_ends_with_a_finish_or_an_error(completion: Json, choices: list[Json]) -> None:
    try:
        *others, last = read_whole({"choices": choices, **completion})
    except AntiphonError:
        return
    assert last.finish is not None
    assert last.counts is not None
    assert not any(chunk.finish for chunk in others)


@given(choice=CHOICES, split=st.integers(0, 5))
def test_an_unstreamed_response_is_read_like_a_stream(choice: Json, split: int) -> None:
    """The text of the stream comes in two events, and the finish in a third one."""
    choice = {name: value for name, value in choice.items() if name not in ("delta", "index", "logprobs", "token_ids")}
    message, text = choice.pop("message") or {}, (choice.get("message") or {}).get("content") or ""
    first = {"choices": [{"delta": {**message, "content": text[:split]}}]}
    second = {"choices": [{"delta": {"content": text[split:]}}]}
    reader = ChatCompletionReader("The engine", Sampling())
    events = [COMPLETION.decode(json.dumps(event)) for event in (first, second, {"choices": [{**choice, "delta": {}}]})]
    streamed = reader.feed(events)
    try:
        whole = read_whole({"choices": [{**choice, "message": {**message, "content": text}}]})
    except EngineFailed:
        assert reader.fault is not None or not reader.finished
        return
    for name in ("text", "reasoning", "refusal"):
        assert "".join(getattr(chunk, name) for chunk in [*streamed, *reader.end()]) == "".join(
            getattr(chunk, name) for chunk in whole
        )


def test_plain_text_is_one_chunk_with_the_finish() -> None:
    body = {"choices": [make_choice({}, {})], "service_tier": "flex", "usage": {"completion_tokens": 2}}
    assert [(chunk.text, chunk.finish, chunk.extras) for chunk in read_whole(body)] == [
        ("Hello", "stop", EngineExtras(service_tier="flex"))
    ]
