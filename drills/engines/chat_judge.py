"""Judges chat completions like `responses_judge.py`: a stream and JSON, each by itself and compared.

A failure before the first token is an HTTP error for both; a later one is the last frame of the stream.
"""

import asyncio
from typing import Any

import msgspec

from drills.engines.responses_judge import DEFECT, FAILED, HANG_SECONDS, TOOLS, Verdict, find_foreign_plays
from drills.harness.client import ANSWER_SECONDS, Answer, Client, Stream
from drills.harness.oracle import InvalidStream

Json = dict[str, Any]

PATH = "/v1/chat/completions"
_TOOLS = [{"type": "function", "function": {"name": tool["name"], "parameters": {}}} for tool in TOOLS]


async def judge_chat(client: Client, prompt: str, own: int | None = None, **fields: Any) -> Verdict:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": _TOOLS, **fields}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with asyncio.timeout(HANG_SECONDS):
            stream, answer = await asyncio.gather(_read_stream(client, streamed), client.post(body, PATH))
        return _compare(stream, answer, own)
    except TimeoutError:
        return Verdict("hangs", ["the response hangs"])
    except (EOFError, ConnectionError) as error:
        return Verdict("torn", [f"the stream broke off: {error!r}"])
    except InvalidStream as wrong:
        return Verdict("wrong", [f"invalid stream: {wrong}"])


async def _read_stream(client: Client, body: Json) -> Stream | Answer:
    async with asyncio.timeout(ANSWER_SECONDS), client.open("POST", PATH, body) as stream:
        if not stream.is_event_stream:
            return Answer(stream.status, await stream.read_body())
        await stream.read()
        return stream


def _compare(stream: Stream | Answer, answer: Answer, own: int | None) -> Verdict:
    if isinstance(stream, Answer):
        same = (stream.status, _error_kind(stream.error())) == (answer.status, _error_kind(answer.error()))
        return Verdict(
            FAILED, ([] if same else _describe_difference(stream.body, answer)) + _check_defect(stream.error())
        )
    fold = ChatFold([_decode(frame) for frame in stream.frames])
    if fold.error is not None:
        same = _error_kind(fold.error) == _error_kind(answer.error())
        return Verdict(FAILED, ([] if same else _describe_difference(fold.error, answer)) + _check_defect(fold.error))
    problems = (
        []
        if answer.status == 200 and fold.result == _answer_fields(answer.json())
        else _describe_difference(fold.result, answer)
    )
    foreign = find_foreign_plays(fold.result["content"], own)
    return Verdict(fold.finish, [*problems, *([f"it contains text of the plays {foreign}"] if foreign else [])])


class ChatFold:
    """The sum of a stream's deltas. Raises InvalidStream if the stream has no end, or more than one."""

    def __init__(self, frames: list[Json]) -> None:
        self.error: Json | None = None
        self.finish = ""
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._calls: dict[int, list[str]] = {}
        self._usage: Json | None = None
        for frame in frames:
            if self.error is not None:
                raise InvalidStream("a frame follows an error")
            self._add(frame)
        if not self.finish and self.error is None:
            raise InvalidStream("the stream has no finish_reason")

    @property
    def result(self) -> Json:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        calls = ["".join(pieces) for _, pieces in sorted(self._calls.items())]
        return {**texts, "calls": calls, "finish": self.finish, "usage": self._usage}

    def _add(self, frame: Json) -> None:
        self.error = frame.get("error")
        self._usage = frame.get("usage") or self._usage
        for choice in frame.get("choices") or ():
            if self.finish:
                raise InvalidStream("a choice follows the finish_reason")
            self.finish = choice["finish_reason"] or ""
            for name, pieces in self._texts.items():
                pieces.append(choice["delta"].get(name) or "")
            for call in choice["delta"].get("tool_calls") or ():
                function = call["function"]
                self._calls.setdefault(call["index"], []).append(
                    function.get("name", "") + function.get("arguments", "")
                )


def _answer_fields(body: Json) -> Json:
    (choice,) = body["choices"]
    message = choice["message"]
    texts = {name: message.get(name) or "" for name in ("content", "reasoning_content", "refusal")}
    calls = [call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return {**texts, "calls": calls, "finish": choice["finish_reason"], "usage": body["usage"]}


def _decode(frame: bytes) -> Json:
    try:
        return msgspec.json.decode(frame.removeprefix(b"data: "), type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidStream(f"a frame is not an event: {frame[:200]!r}")


def _error_kind(error: Json) -> tuple[Any, Any]:
    return error.get("type"), error.get("code")


def _describe_difference(streamed: object, answer: Answer) -> list[str]:
    return [f"chat: the stream contains {str(streamed)[:500]}, JSON is {answer.status} {answer.body[:500]!r}"]


def _check_defect(error: Json) -> list[str]:
    return ["chat: the response failed with an internal error"] if DEFECT in error.get("message", "") else []
