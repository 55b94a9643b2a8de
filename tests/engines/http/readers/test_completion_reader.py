"""What comes of the bytes of raw completions in their three shapes: the same however they are cut, and a typed error if
they are not well. The bytes are those of golden recordings."""

import random

import msgspec
import pytest

from antiphon.core.prompt import Sampling, TokenPrompt
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.sglang import Sglang
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.readers.completion_reader import TextReader
from antiphon.engines.http.readers.wire import TEXT_COMPLETION
from antiphon.errors import BadRequest, EngineFailed
from tests.engines.http.stubs.generation import Said, ask, work
from tests.engines.http.stubs.mutations import cut, mutated
from tests.engines.http.stubs.scripted_network import HEAD, chunked, playing
from tools.golden import GOLDEN, read

pytestmark = pytest.mark.anyio

MUTATIONS = 400
KINDS: dict[str, type[HttpEngine]] = {"vllm": Vllm, "sglang": Sglang, "llamacpp-server": LlamaCppServer}
WORK = work(prompt=TokenPrompt((1, 2, 3)), max_tokens=8, logprobs=2)
END = b"0\r\n\r\n"


def recorded(name: str) -> bytes:
    """The answer to a raw prompt, as it was on the wire."""
    answers = [one.answer for one in read(GOLDEN / name / "tokens-logprobs.json").exchanges]
    (stream,) = [answer for answer in answers if "text/event-stream" in answer]
    return stream.encode()


def shape(said: Said) -> tuple[object, ...]:
    last = said.chunks[-1] if said.chunks else None
    tokens = [token for chunk in said.chunks for token in chunk.tokens]
    logprobs = [one.token for chunk in said.chunks for one in chunk.logprobs]
    kind = None if said.error is None else type(said.error)
    return said.text, tokens, logprobs, last and last.finish, last and last.counts, kind


@pytest.mark.shows("C.28")
@pytest.mark.parametrize("name", KINDS)
async def test_no_mutation_of_a_raw_answer_makes_it_crash_or_hang(name: str) -> None:
    chance = random.Random(name)
    whole = recorded(name)
    for _ in range(MUTATIONS):
        data = mutated(whole, chance)
        said = await ask(playing(KINDS[name], data), WORK)
        places = [chance.randrange(len(data) + 1) for _ in range(6)] if data else []
        assert shape(await ask(playing(KINDS[name], *cut(data, places)), WORK)) == shape(said)
        assert (said.error is None) is bool(said.chunks and said.chunks[-1].finish)


@pytest.mark.parametrize("name", KINDS)
async def test_an_answer_that_breaks_off_is_no_answer(name: str) -> None:
    whole = recorded(name)
    for end in (whole.index(b"data:"), whole.rindex(b"data:", 0, whole.rindex(b"data:")), len(whole) // 2):
        said = await ask(playing(KINDS[name], whole[:end]), WORK)
        assert isinstance(said.error, EngineFailed)


@pytest.mark.parametrize("name", KINDS)
async def test_an_error_in_the_middle_is_told_after_what_came_before_it(name: str) -> None:
    whole = recorded(name)
    rest = whole.partition(b"\r\n\r\n")[2]
    size, _, begun = rest.partition(b"\r\n")
    first = begun[: int(size, 16)]
    for code, error in ((500, EngineFailed), (400, BadRequest)):
        kind = b"server_error" if code == 500 else b"invalid_request_error"
        fault = b'data: {"error":{"message":"boom","type":"%s","code":%d}}\n\n' % (kind, code)
        said = await ask(playing(KINDS[name], HEAD, chunked(first), chunked(fault), END), WORK)
        assert type(said.error) is error
        assert "boom" in str(said.error)
        assert not any(chunk.finish for chunk in said.chunks)


def test_the_token_that_ended_an_answer_has_no_log_probability_in_it() -> None:
    logprobs = {"tokens": ["a", "<end>"], "token_logprobs": [-0.5, -0.1], "top_logprobs": [{"a": -0.5}, None]}
    choice = {"index": 0, "text": "a", "token_ids": [5, 2], "logprobs": logprobs, "finish_reason": "stop"}
    events = [TEXT_COMPLETION.decode(msgspec.json.encode({"choices": [choice]}))]
    (chunk,) = TextReader("It", Sampling(logprobs=1)).feed(events)
    assert [one.token for one in chunk.logprobs] == ["a"]
    assert chunk.tokens == (5, 2)
