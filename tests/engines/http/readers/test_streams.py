"""What comes of the bytes that engines send: the same however they are cut, a typed error if they are not well, and
never a hang, a crash or an answer that only seems to have ended.
"""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.prompt import Chunk
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.sse import MAX_EVENT_BYTES
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, Unavailable
from tests.engines.http.stubs.generation import Said, ask, work
from tests.engines.http.stubs.mutations import cut, mutated
from tests.engines.http.stubs.recorded_streams import VLLM, WIRES, Wire
from tests.engines.http.stubs.scripted_network import BARE, HEAD, chunked, playing

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
END = b"0\r\n\r\n"
MUTATIONS = 3000


def calls_of(said: Said) -> dict[int, tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for chunk in said.chunks:
        for piece in chunk.calls:
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = name + piece.name, arguments + piece.arguments
    return calls


def shape(said: Said) -> tuple[object, ...]:
    """All that a client could tell apart."""
    last = said.chunks[-1] if said.chunks else Chunk()
    refusal = "".join(chunk.refusal for chunk in said.chunks)
    kind = None if said.error is None else type(said.error)
    return said.text, said.thought, refusal, calls_of(said), last.finish, last.counts, kind


async def heard(wire: Wire, *pieces: bytes, **how: Any) -> Said:
    return await ask(playing(wire.kind, *pieces, **how), work(**wire.asked))


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.shows("C.14", "C.15", "C.16", "C.17", "C.18", "C.19")
async def test_a_stream_is_understood(name: str) -> None:
    wire = WIRES[name]
    events = wire.body.split(b"\n\n")
    by_event = b"".join(chunked(event + b"\n\n") for event in events if event)
    said = await heard(wire, HEAD, by_event, END)
    expected = wire.text, wire.thought, wire.refusal, wire.calls, wire.finish, wire.counts, None
    assert shape(said) == expected
    assert [chunk.finish for chunk in said.chunks[:-1]] == [None] * (len(said.chunks) - 1)


@pytest.mark.parametrize("name", WIRES)
async def test_a_stream_says_what_an_answer_at_once_says(name: str) -> None:
    """The same answer as one JSON body, made of the stream's own words."""
    wire = WIRES[name]
    message: Json = {"role": "assistant", "content": wire.text or None, "reasoning_content": wire.thought or None}
    if wire.refusal:
        message["refusal"] = wire.refusal
    if wire.calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in wire.calls.values()]
        message["tool_calls"] = [{"id": str(at), "function": one} for at, one in enumerate(functions)]
    usage = {
        "prompt_tokens": wire.counts.input_tokens,
        "completion_tokens": wire.counts.output_tokens,
        "prompt_tokens_details": {"cached_tokens": wire.counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": wire.counts.reasoning_tokens},
    }
    choice = {"index": 0, "message": message, "finish_reason": wire.finish}
    body = msgspec.json.encode({"choices": [choice], "usage": usage})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    engine = playing(wire.kind, head + body)
    engine._at_once = lambda work: True  # type: ignore[method-assign]  # so that the same work is asked for at once
    assert shape(await ask(engine, work(**wire.asked))) == shape(await heard(wire, HEAD, chunked(wire.body), END))


class Cuts(msgspec.Struct, frozen=True):
    """How the same words may come. Drawn before the test begins: a draw that Hypothesis gives up must not end the
    event loop's own task, whose complaint would come out of the garbage collector, wherever that is just then."""

    returns: bool
    without_a_space: bool
    without_a_length: bool
    chunks: list[int]
    pieces: list[int]


def places(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 5000), max_size=most)


CUTS = st.builds(Cuts, st.booleans(), st.booleans(), st.booleans(), places(6), places(12))


@given(name=st.sampled_from(sorted(WIRES)), cuts=CUTS)
@settings(max_examples=300)
async def test_where_the_bytes_are_cut_makes_no_difference(name: str, cuts: Cuts) -> None:
    wire = WIRES[name]
    body = wire.body.replace(b"\n", b"\r\n") if cuts.returns else wire.body
    if cuts.without_a_space:
        body = body.replace(b"data: ", b"data:")
    chunks = b"".join(chunked(piece) for piece in cut(body, cuts.chunks))
    whole = BARE + body if cuts.without_a_length else HEAD + chunks + END
    assert shape(await heard(wire, *cut(whole, cuts.pieces))) == shape(await heard(wire, HEAD, chunked(wire.body), END))


@pytest.mark.shows("C.28")
@pytest.mark.parametrize("part", range(3))
async def test_no_mutation_makes_it_crash_or_hang_and_cutting_it_changes_nothing(part: int) -> None:
    """Each is read whole and in pieces; whatever comes of it has an end: a finish, or an error of ours."""
    chance = random.Random(part)
    names = sorted(WIRES)
    fates = {"finish": 0, "error": 0}
    async with asyncio.timeout(200):
        for number in range(MUTATIONS // 3):
            wire = WIRES[names[number % len(names)]]
            if chance.random() < 0.5:
                body = mutated(HEAD + b"".join(chunked(line + b"\n") for line in wire.body.splitlines()) + END, chance)
            else:
                body = HEAD + chunked(mutated(wire.body, chance)) + END
            whole = await heard(wire, body)
            pieces = cut(body, [chance.randrange(len(body) + 1) for _ in range(chance.randint(1, 30))])
            assert shape(await heard(wire, *pieces)) == shape(whole), body
            if whole.error is None:
                assert whole.chunks[-1].finish is not None
                assert whole.chunks[-1].counts is not None
            fates["finish" if whole.error is None else "error"] += 1
    assert min(fates.values()) > 50, fates


def said(*events: bytes, done: bool = True) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in (*events, *([b"[DONE]"] if done else [])))


A = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'

HOSTILE: dict[str, tuple[bytes, type[AntiphonError] | None]] = {
    "good": (said(A, STOP, USAGE), None),
    "no [DONE]": (said(A, STOP, USAGE, done=False), None),
    "no usage": (said(A, STOP), None),
    "no usage and no [DONE]": (said(A, STOP, done=False), None),
    "usage before the end": (said(A, USAGE, STOP), None),
    "null usage everywhere": (said(A[:-1] + b',"usage":null}', STOP, USAGE), None),
    "two ends": (said(A, STOP, STOP, USAGE), None),
    "text after the end": (said(A, STOP, A, USAGE), None),
    "another choice": (said(A, A.replace(b'"index":0', b'"index":1'), STOP, USAGE), None),
    "no index": (said(A.replace(b'"index":0,', b""), STOP, USAGE), None),
    "null delta": (said(b'{"choices":[{"delta":null}]}', A, STOP), None),
    "null choices": (said(b'{"choices":null}', A, STOP), None),
    "empty objects": (said(b"{}", A, b"{}", STOP), None),
    "empty finish reasons": (said(A[:-3] + b',"finish_reason":""}]}', STOP), None),
    "comments": (b": hello\n\n:\n\n" + said(A, STOP).replace(b"\n\n", b"\n: more\n\n"), None),
    "ids and names": (b"event: message\nid: 7\nretry: 10\n" + said(A, STOP), None),
    "only [DONE]": (said(), EngineFailed),
    "nothing": (b"", EngineFailed),
    "no end": (said(A), EngineFailed),
    "no end and no [DONE]": (said(A, done=False), EngineFailed),
    "an end that nobody knows": (said(A, STOP.replace(b"stop", b"abort")), EngineFailed),
    "half an event": (said(A) [:-20], EngineFailed),
    "no JSON": (said(A, b"<html>", STOP), EngineFailed),
    "no UTF-8": (said(A, b'{"choices":[{"delta":{"content":"\xff\xfe"}}]}', STOP), EngineFailed),
    "half a surrogate": (said(A, b'{"choices":[{"delta":{"content":"\\ud800"}}]}', STOP), EngineFailed),
    "a list": (said(b"[]", STOP), EngineFailed),
    "wrong types": (said(b'{"choices":[{"delta":{"content":5}}]}', STOP), EngineFailed),
    "a number that is too large": (said(A, STOP, USAGE.replace(b"1}}", b"1e999}}")), EngineFailed),
    "very deep": (said(b'{"choices":[{"delta":{"tool_calls":' + b"[" * 100_000, STOP), EngineFailed),
    "a call without a name": (
        said(b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}', STOP),
        EngineFailed,
    ),
    "an endless line": (b"data: " + b"x" * (MAX_EVENT_BYTES + 10), EngineFailed),
    "an error": (said(A, b'{"error":{"message":"CUDA out of memory","type":"server_error"}}'), EngineFailed),
    "an error as a text": (said(A, b'{"error":"boom"}'), EngineFailed),
    "an error of older servers": (said(b'{"object":"error","message":"boom","code":500}'), EngineFailed),
    "an error by name": (b'event: error\ndata: {"message":"boom"}\n\n', EngineFailed),
    "an error by name in words": (b"event: error\ndata: boom\n\n", EngineFailed),
    "an error that is empty": (said(b'{"error":{}}'), EngineFailed),
    "an error after the end": (said(A, STOP, b'{"error":{"message":"late"}}'), EngineFailed),
    "too long": (said(b'{"error":{"message":"the context length is 8","code":400}}'), ContextTooLong),
    "too much": (said(b'{"error":{"message":"slow down","code":429}}'), Busy),
    "gone": (said(b'{"error":{"message":"loading","code":503}}'), Unavailable),
    "not for it": (said(b'{"error":{"message":"Token id 9 is out of vocabulary","code":400}}'), BadRequest),
}  # fmt: skip


@pytest.mark.shows("C.28")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_stream_that_is_not_well_is_a_typed_error(name: str) -> None:
    body, error = HOSTILE[name]
    heard_all = await heard(VLLM, HEAD, chunked(body) if body else b"", END)
    assert type(heard_all.error) is (error or type(None)), heard_all.error
    if error is None:
        assert (heard_all.text, heard_all.chunks[-1].finish) == ("a", "stop")
    else:
        assert heard_all.text in ("", "a")
        assert not any(chunk.finish for chunk in heard_all.chunks)


async def test_what_came_before_the_error_is_heard() -> None:
    heard_all = await heard(VLLM, HEAD + chunked(said(A, A, b'{"error":"boom"}')) + END)
    assert (heard_all.text, str(heard_all.error)) == ("aa", "The vllm engine failed: boom")


@pytest.mark.shows("C.28")
async def test_silence_is_an_error_in_time() -> None:
    for pieces in ([], [HEAD], [HEAD, chunked(said(A, done=False))]):
        heard_all = await heard(VLLM, *pieces, hangs_up=False)
        assert isinstance(heard_all.error, EngineFailed)
        assert "did not answer in time" in str(heard_all.error) or "went silent" in str(heard_all.error)


async def test_an_engine_may_be_slower_to_begin_than_to_go_on() -> None:
    engine = playing(Vllm, HEAD, hangs_up=False, first=0.3, idle=0.01)
    begun = asyncio.get_running_loop().time()
    assert isinstance((await ask(engine)).error, EngineFailed)
    assert asyncio.get_running_loop().time() - begun >= 0.25
    engine = playing(Vllm, HEAD, chunked(said(A, done=False)), hangs_up=False, first=600.0, idle=0.05)
    async with asyncio.timeout(30):
        assert isinstance((await ask(engine)).error, EngineFailed)


@pytest.mark.shows("C.28")
async def test_death_or_silence_in_the_middle_is_an_error_and_after_the_end_it_is_not() -> None:
    torn = await heard(VLLM, HEAD, chunked(said(A, done=False)))
    assert isinstance(torn.error, EngineFailed)
    assert "hung up in the middle" in str(torn.error)
    for hangs_up in (True, False):
        over = await heard(VLLM, HEAD, chunked(said(A, STOP, done=False)), hangs_up=hangs_up)
        assert (over.text, over.error, over.chunks[-1].finish) == ("a", None, "stop")


async def test_an_endless_stream_after_the_end_holds_nobody_up() -> None:
    rest = [chunked(said(A, done=False))] * 50
    heard_all = await heard(VLLM, HEAD, chunked(said(A, STOP, USAGE, done=False)), *rest, hangs_up=False)
    assert (heard_all.text, heard_all.error) == ("a", None)


async def test_logprobs_are_heard_and_cut_to_what_was_asked_for() -> None:
    top = b'[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"b","logprob":null,"bytes":null}]'
    content = b'[{"token":"a","logprob":-0.5,"bytes":null,"top_logprobs":%s}]' % top
    event = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":%s}}]}' % content
    for most in (0, 1, 2):
        engine = playing(Vllm, HEAD + chunked(said(event, STOP)) + END)
        (logprob,) = [one for chunk in (await ask(engine, work(logprobs=most))).chunks for one in chunk.logprobs]
        assert (logprob.token, logprob.logprob, logprob.bytes) == ("a", -0.5, [97])
        assert [one.token for one in logprob.top_logprobs] == ["a", "b"][:most]
    unasked = await heard(VLLM, HEAD + chunked(said(event, STOP)) + END)
    assert not any(chunk.logprobs for chunk in unasked.chunks)


async def test_the_token_that_ended_an_answer_has_no_log_probability_in_it() -> None:
    """vLLM tells it with the others, OpenAI does not."""
    last = b'{"choices":[{"index":0,"delta":{"content":""},"logprobs":{"content":[%s]},"finish_reason":"stop"}]}'
    first = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1}]}}]}'
    engine = playing(Vllm, HEAD + chunked(said(first, last % b'{"token":"<|im_end|>","logprob":-0.1}')) + END)
    heard_all = await ask(engine, work(logprobs=0))
    assert [one.token for chunk in heard_all.chunks for one in chunk.logprobs] == ["a"]
    assert heard_all.chunks[-1].finish == "stop"
