"""Reading of raw completions in their three formats, from golden recordings.

The result does not depend on how the bytes are split, and malformed bytes raise a typed error.

Covers `engines/http/readers/sglang_reader.py`.
"""

import random

import msgspec
import pytest

from antiphon.core.prompt import Sampling, TokenPrompt
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.sglang import Sglang
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.readers.completion_reader import TextCompletionReader
from antiphon.engines.http.readers.wire import TEXT_COMPLETION
from antiphon.errors import BadRequest, EngineFailed
from tests.engines.http.stubs.generation import GenerationResult, make_request, run_generation
from tests.engines.http.stubs.mutations import mutate, split_bytes
from tests.engines.http.stubs.scripted_network import CHUNKED_HEAD, http_chunk, make_scripted_engine
from tools.golden import GOLDEN, load_recording

pytestmark = pytest.mark.anyio

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
@pytest.mark.parametrize("name", ENGINE_CLASSES)
async def test_mutated_raw_completions_neither_crash_nor_hang(name: str) -> None:
    rng = random.Random(name)
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
    events = [TEXT_COMPLETION.decode(msgspec.json.encode({"choices": [choice]}))]
    (chunk,) = TextCompletionReader("It", Sampling(logprobs=1)).feed(events)
    assert [one.token for one in chunk.logprobs] == ["a"]
    assert chunk.tokens == (5, 2)
