"""Reading of chat completion streams, over a scripted network.

The result does not depend on how the bytes are split, a malformed stream raises a typed error, and no stream causes a
hang, a crash or a truncated response that seems complete.
"""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Chunk
from antiphon.engines.client import MAX_EVENT_BYTES
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, Unavailable
from tests.engines.http.stubs.generation import GenerationResult, make_request, run_generation
from tests.engines.http.stubs.mutations import mutate, split_bytes
from tests.engines.http.stubs.recorded_streams import RECORDED_STREAMS, VLLM, RecordedStream
from tests.engines.http.stubs.scripted_network import CHUNKED_HEAD, UNCHUNKED_HEAD, http_chunk, make_scripted_engine

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
END = b"0\r\n\r\n"
MUTATIONS = 3000


def collect_calls(result: GenerationResult) -> dict[int, tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for chunk in result.chunks:
        for piece in chunk.calls:
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = name + piece.name, arguments + piece.arguments
    return calls


def summarise(result: GenerationResult) -> tuple[object, ...]:
    """Return everything that a client could distinguish."""
    last = result.chunks[-1] if result.chunks else Chunk()
    refusal = "".join(chunk.refusal for chunk in result.chunks)
    kind = None if result.error is None else type(result.error)
    return result.text, result.reasoning, refusal, collect_calls(result), last.finish, last.counts, kind


async def replay(recording: RecordedStream, *pieces: bytes, **options: Any) -> GenerationResult:
    return await run_generation(
        make_scripted_engine(recording.kind, *pieces, **options), make_request(**recording.request_fields)
    )


@pytest.mark.parametrize("name", RECORDED_STREAMS)
@pytest.mark.shows("C.14", "C.15", "C.16", "C.17", "C.18", "C.19")
async def test_a_recorded_stream_is_parsed(name: str) -> None:
    recording = RECORDED_STREAMS[name]
    events = recording.body.split(b"\n\n")
    by_event = b"".join(http_chunk(event + b"\n\n") for event in events if event)
    result = await replay(recording, CHUNKED_HEAD, by_event, END)
    expected = (
        recording.text,
        recording.reasoning,
        recording.refusal,
        recording.calls,
        recording.finish,
        recording.counts,
        None,
    )
    assert summarise(result) == expected
    assert [chunk.finish for chunk in result.chunks[:-1]] == [None] * (len(result.chunks) - 1)


@pytest.mark.parametrize("name", RECORDED_STREAMS)
async def test_a_stream_and_an_unstreamed_response_give_the_same_result(name: str) -> None:
    """The unstreamed response is a JSON body built from the expected result of the stream."""
    recording = RECORDED_STREAMS[name]
    message: Json = {
        "role": "assistant",
        "content": recording.text or None,
        "reasoning_content": recording.reasoning or None,
    }
    if recording.refusal:
        message["refusal"] = recording.refusal
    if recording.calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in recording.calls.values()]
        message["tool_calls"] = [{"id": str(at), "function": one} for at, one in enumerate(functions)]
    usage = {
        "prompt_tokens": recording.counts.input_tokens,
        "completion_tokens": recording.counts.output_tokens,
        "prompt_tokens_details": {"cached_tokens": recording.counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": recording.counts.reasoning_tokens},
    }
    choice = {"index": 0, "message": message, "finish_reason": recording.finish}
    body = msgspec.json.encode({"choices": [choice], "usage": usage})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    engine = make_scripted_engine(recording.kind, head + body)
    assert summarise(
        await run_generation(engine, make_request(**recording.request_fields, buffered=True))
    ) == summarise(await replay(recording, CHUNKED_HEAD, http_chunk(recording.body), END))


class StreamFormat(msgspec.Struct, frozen=True):
    """Variations of how the same events are sent.

    They are drawn before the test starts: a draw that Hypothesis abandons must not end the task of the event loop,
    whose error would be reported by the garbage collector at an arbitrary point.
    """

    crlf: bool
    omits_space: bool
    unchunked: bool
    chunks: list[int]
    pieces: list[int]


def draw_positions(max_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 5000), max_size=max_size)


STREAM_FORMATS = st.builds(
    StreamFormat, st.booleans(), st.booleans(), st.booleans(), draw_positions(6), draw_positions(12)
)


@given(name=st.sampled_from(sorted(RECORDED_STREAMS)), cuts=STREAM_FORMATS)
async def test_the_result_does_not_depend_on_where_the_bytes_are_split(name: str, cuts: StreamFormat) -> None:
    recording = RECORDED_STREAMS[name]
    body = recording.body.replace(b"\n", b"\r\n") if cuts.crlf else recording.body
    if cuts.omits_space:
        body = body.replace(b"data: ", b"data:")
    chunks = b"".join(http_chunk(piece) for piece in split_bytes(body, cuts.chunks))
    whole = UNCHUNKED_HEAD + body if cuts.unchunked else CHUNKED_HEAD + chunks + END
    assert summarise(await replay(recording, *split_bytes(whole, cuts.pieces))) == summarise(
        await replay(recording, CHUNKED_HEAD, http_chunk(recording.body), END)
    )


@pytest.mark.shows("C.28")
@pytest.mark.seeds(3)
async def test_mutated_streams_neither_crash_nor_hang_and_do_not_depend_on_splitting(seed: int) -> None:
    """Each mutation is read at once and in pieces; every result ends with a finish or with an AntiphonError."""
    rng = random.Random(seed)
    names = sorted(RECORDED_STREAMS)
    outcomes = {"finish": 0, "error": 0}
    async with asyncio.timeout(200):
        for number in range(MUTATIONS // 3):
            recording = RECORDED_STREAMS[names[number % len(names)]]
            if rng.random() < 0.5:
                body = mutate(
                    CHUNKED_HEAD + b"".join(http_chunk(line + b"\n") for line in recording.body.splitlines()) + END, rng
                )
            else:
                body = CHUNKED_HEAD + http_chunk(mutate(recording.body, rng)) + END
            whole = await replay(recording, body)
            pieces = split_bytes(body, [rng.randrange(len(body) + 1) for _ in range(rng.randint(1, 30))])
            assert summarise(await replay(recording, *pieces)) == summarise(whole), body
            if whole.error is None:
                assert whole.chunks[-1].finish is not None
                assert whole.chunks[-1].counts is not None
            outcomes["finish" if whole.error is None else "error"] += 1
    assert min(outcomes.values()) > 50, outcomes


def sse_body(*events: bytes, done: bool = True) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in (*events, *([b"[DONE]"] if done else [])))


A = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'

STREAM_CASES: dict[str, tuple[bytes, type[AntiphonError] | None]] = {
    "good": (sse_body(A, STOP, USAGE), None),
    "no [DONE]": (sse_body(A, STOP, USAGE, done=False), None),
    "no usage": (sse_body(A, STOP), None),
    "no usage and no [DONE]": (sse_body(A, STOP, done=False), None),
    "usage before the finish": (sse_body(A, USAGE, STOP), None),
    "null usage everywhere": (sse_body(A[:-1] + b',"usage":null}', STOP, USAGE), None),
    "two finish reasons": (sse_body(A, STOP, STOP, USAGE), None),
    "text after the finish": (sse_body(A, STOP, A, USAGE), None),
    "another choice": (sse_body(A, A.replace(b'"index":0', b'"index":1'), STOP, USAGE), None),
    "no index": (sse_body(A.replace(b'"index":0,', b""), STOP, USAGE), None),
    "null delta": (sse_body(b'{"choices":[{"delta":null}]}', A, STOP), None),
    "null choices": (sse_body(b'{"choices":null}', A, STOP), None),
    "empty objects": (sse_body(b"{}", A, b"{}", STOP), None),
    "empty finish reasons": (sse_body(A[:-3] + b',"finish_reason":""}]}', STOP), None),
    "comments": (b": hello\n\n:\n\n" + sse_body(A, STOP).replace(b"\n\n", b"\n: more\n\n"), None),
    "ids and names": (b"event: message\nid: 7\nretry: 10\n" + sse_body(A, STOP), None),
    "only [DONE]": (sse_body(), EngineFailed),
    "nothing": (b"", EngineFailed),
    "no finish reason": (sse_body(A), EngineFailed),
    "no finish reason and no [DONE]": (sse_body(A, done=False), EngineFailed),
    "an unknown finish reason": (sse_body(A, STOP.replace(b"stop", b"abort")), EngineFailed),
    "half an event": (sse_body(A) [:-20], EngineFailed),
    "no JSON": (sse_body(A, b"<html>", STOP), EngineFailed),
    "no UTF-8": (sse_body(A, b'{"choices":[{"delta":{"content":"\xff\xfe"}}]}', STOP), EngineFailed),
    "half a surrogate": (sse_body(A, b'{"choices":[{"delta":{"content":"\\ud800"}}]}', STOP), EngineFailed),
    "a list": (sse_body(b"[]", STOP), EngineFailed),
    "wrong types": (sse_body(b'{"choices":[{"delta":{"content":5}}]}', STOP), EngineFailed),
    "a number that is too large": (sse_body(A, STOP, USAGE.replace(b"1}}", b"1e999}}")), EngineFailed),
    "very deep": (sse_body(b'{"choices":[{"delta":{"tool_calls":' + b"[" * 100_000, STOP), EngineFailed),
    "a call without a name": (
        sse_body(b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}', STOP),
        EngineFailed,
    ),
    "an endless line": (b"data: " + b"x" * (MAX_EVENT_BYTES + 10), EngineFailed),
    "an error": (sse_body(A, b'{"error":{"message":"CUDA out of memory","type":"server_error"}}'), EngineFailed),
    "an error as a text": (sse_body(A, b'{"error":"boom"}'), EngineFailed),
    "an error of older servers": (sse_body(b'{"object":"error","message":"boom","code":500}'), EngineFailed),
    "an error event": (b'event: error\ndata: {"message":"boom"}\n\n', EngineFailed),
    "an error event with plain text": (b"event: error\ndata: boom\n\n", EngineFailed),
    "an error that is empty": (sse_body(b'{"error":{}}'), EngineFailed),
    "an error after the finish": (sse_body(A, STOP, b'{"error":{"message":"late"}}'), EngineFailed),
    "context too long": (sse_body(b'{"error":{"message":"the context length is 8","code":400}}'), ContextTooLong),
    "rate limited": (sse_body(b'{"error":{"message":"slow down","code":429}}'), Busy),
    "unavailable": (sse_body(b'{"error":{"message":"loading","code":503}}'), Unavailable),
    "invalid request": (sse_body(b'{"error":{"message":"Token id 9 is out of vocabulary","code":400}}'), BadRequest),
}  # fmt: skip


@pytest.mark.shows("C.28")
@pytest.mark.parametrize("name", STREAM_CASES)
async def test_an_irregular_stream_is_read_or_raises_a_typed_error(name: str) -> None:
    body, error = STREAM_CASES[name]
    result = await replay(VLLM, CHUNKED_HEAD, http_chunk(body) if body else b"", END)
    assert type(result.error) is (error or type(None)), result.error
    if error is None:
        assert (result.text, result.chunks[-1].finish) == ("a", "stop")
    else:
        assert result.text in ("", "a")
        assert not any(chunk.finish for chunk in result.chunks)


async def test_text_before_an_error_is_delivered() -> None:
    result = await replay(VLLM, CHUNKED_HEAD + http_chunk(sse_body(A, A, b'{"error":"boom"}')) + END)
    assert (result.text, str(result.error)) == ("aa", "The vllm engine failed: boom")


@pytest.mark.shows("C.28")
async def test_a_silent_engine_times_out() -> None:
    for pieces in ([], [CHUNKED_HEAD], [CHUNKED_HEAD, http_chunk(sse_body(A, done=False))]):
        result = await replay(VLLM, *pieces, hangs_up=False)
        assert isinstance(result.error, EngineFailed)
        assert "did not answer in time" in str(result.error) or "stopped sending" in str(result.error)


async def test_the_first_token_timeout_is_separate_from_the_idle_timeout() -> None:
    engine = make_scripted_engine(Vllm, CHUNKED_HEAD, hangs_up=False, first=0.3, idle=0.01)
    started = asyncio.get_running_loop().time()
    assert isinstance((await run_generation(engine)).error, EngineFailed)
    assert asyncio.get_running_loop().time() - started >= 0.25
    engine = make_scripted_engine(
        Vllm, CHUNKED_HEAD, http_chunk(sse_body(A, done=False)), hangs_up=False, first=600.0, idle=0.05
    )
    async with asyncio.timeout(30):
        assert isinstance((await run_generation(engine)).error, EngineFailed)


@pytest.mark.shows("C.28")
async def test_a_lost_connection_is_an_error_before_the_finish_but_not_after_it() -> None:
    interrupted = await replay(VLLM, CHUNKED_HEAD, http_chunk(sse_body(A, done=False)))
    assert isinstance(interrupted.error, EngineFailed)
    assert "closed the connection in the middle" in str(interrupted.error)
    for hangs_up in (True, False):
        finished = await replay(VLLM, CHUNKED_HEAD, http_chunk(sse_body(A, STOP, done=False)), hangs_up=hangs_up)
        assert (finished.text, finished.error, finished.chunks[-1].finish) == ("a", None, "stop")


async def test_an_endless_stream_after_the_finish_does_not_delay_the_result() -> None:
    trailing = [http_chunk(sse_body(A, done=False))] * 50
    result = await replay(
        VLLM, CHUNKED_HEAD, http_chunk(sse_body(A, STOP, USAGE, done=False)), *trailing, hangs_up=False
    )
    assert (result.text, result.error) == ("a", None)


async def test_logprobs_are_cut_to_the_requested_number() -> None:
    top = b'[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"b","logprob":null,"bytes":null}]'
    content = b'[{"token":"a","logprob":-0.5,"bytes":null,"top_logprobs":%s}]' % top
    event = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":%s}}]}' % content
    for top_count in (0, 1, 2):
        engine = make_scripted_engine(Vllm, CHUNKED_HEAD + http_chunk(sse_body(event, STOP)) + END)
        (logprob,) = [
            one
            for chunk in (await run_generation(engine, make_request(logprobs=top_count))).chunks
            for one in chunk.logprobs
        ]
        assert (logprob.token, logprob.logprob, logprob.bytes) == ("a", -0.5, [97])
        assert [one.token for one in logprob.top_logprobs] == ["a", "b"][:top_count]
    unrequested = await replay(VLLM, CHUNKED_HEAD + http_chunk(sse_body(event, STOP)) + END)
    assert not any(chunk.logprobs for chunk in unrequested.chunks)


async def test_the_log_probability_of_the_end_token_is_dropped() -> None:
    """vLLM sends it with the others, OpenAI does not."""
    last = b'{"choices":[{"index":0,"delta":{"content":""},"logprobs":{"content":[%s]},"finish_reason":"stop"}]}'
    first = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1}]}}]}'
    engine = make_scripted_engine(
        Vllm, CHUNKED_HEAD + http_chunk(sse_body(first, last % b'{"token":"<|im_end|>","logprob":-0.1}')) + END
    )
    result = await run_generation(engine, make_request(logprobs=0))
    assert [one.token for chunk in result.chunks for one in chunk.logprobs] == ["a"]
    assert result.chunks[-1].finish == "stop"
