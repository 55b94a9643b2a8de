"""The same for chat completions: a stream and JSON, judged by themselves and with each other.

What fails before the first word is a plain HTTP error for both; later a stream says so in its last frame.
"""

import asyncio
from typing import Any

import msgspec

from drills.engines.responses_judge import DEFECT, FAILED, HANG_SECONDS, TOOLS, Verdict, strangers
from drills.harness.client import ANSWER_SECONDS, Answer, Client, Stream
from drills.harness.oracle import Wrong

Json = dict[str, Any]

PATH = "/v1/chat/completions"
_TOOLS = [{"type": "function", "function": {"name": tool["name"], "parameters": {}}} for tool in TOOLS]


async def chat_judged(client: Client, asked: str, own: int | None = None, **fields: Any) -> Verdict:
    body = {"model": "m", "messages": [{"role": "user", "content": asked}], "tools": _TOOLS, **fields}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with asyncio.timeout(HANG_SECONDS):
            told, whole = await asyncio.gather(_streamed(client, streamed), client.post(body, PATH))
        return _compared(told, whole, own)
    except TimeoutError:
        return Verdict("hangs", ["it hangs"])
    except (EOFError, ConnectionError) as error:
        return Verdict("torn", [f"the stream is torn: {error!r}"])
    except Wrong as wrong:
        return Verdict("wrong", [f"the stream is none: {wrong}"])


async def _streamed(client: Client, body: Json) -> Stream | Answer:
    async with asyncio.timeout(ANSWER_SECONDS), client.open("POST", PATH, body) as stream:
        if not stream.streams:
            return Answer(stream.status, await stream.body())
        await stream.read()
        return stream


def _compared(told: Stream | Answer, whole: Answer, own: int | None) -> Verdict:
    if isinstance(told, Answer):
        same = (told.status, _kind(told.error())) == (whole.status, _kind(whole.error()))
        return Verdict(FAILED, ([] if same else _differ(told.body, whole)) + _defects(told.error()))
    said = Fold([_decoded(frame) for frame in told.frames])
    if said.error is not None:
        same = _kind(said.error) == _kind(whole.error())
        return Verdict(FAILED, ([] if same else _differ(said.error, whole)) + _defects(said.error))
    wrong = [] if whole.status == 200 and said.whole == _answer(whole.json()) else _differ(said.whole, whole)
    foreign = strangers(said.whole["content"], own)
    return Verdict(said.finish, [*wrong, *([f"it has words of {foreign}"] if foreign else [])])


class Fold:
    """What a stream adds up to. Raises Wrong if it has no end, or more than one."""

    def __init__(self, frames: list[Json]) -> None:
        self.error: Json | None = None
        self.finish = ""
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._calls: dict[int, list[str]] = {}
        self._usage: Json | None = None
        for frame in frames:
            if self.error is not None:
                raise Wrong("something comes after an error")
            self._take(frame)
        if not self.finish and self.error is None:
            raise Wrong("it has no end")

    @property
    def whole(self) -> Json:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        calls = ["".join(pieces) for _, pieces in sorted(self._calls.items())]
        return {**texts, "calls": calls, "finish": self.finish, "usage": self._usage}

    def _take(self, frame: Json) -> None:
        self.error = frame.get("error")
        self._usage = frame.get("usage") or self._usage
        for choice in frame.get("choices") or ():
            if self.finish:
                raise Wrong("it goes on after its end")
            self.finish = choice["finish_reason"] or ""
            for name, pieces in self._texts.items():
                pieces.append(choice["delta"].get(name) or "")
            for call in choice["delta"].get("tool_calls") or ():
                function = call["function"]
                self._calls.setdefault(call["index"], []).append(
                    function.get("name", "") + function.get("arguments", "")
                )


def _answer(body: Json) -> Json:
    (choice,) = body["choices"]
    message = choice["message"]
    texts = {name: message.get(name) or "" for name in ("content", "reasoning_content", "refusal")}
    calls = [call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return {**texts, "calls": calls, "finish": choice["finish_reason"], "usage": body["usage"]}


def _decoded(frame: bytes) -> Json:
    try:
        return msgspec.json.decode(frame.removeprefix(b"data: "), type=dict[str, Any])
    except msgspec.DecodeError:
        raise Wrong(f"a frame is no event: {frame[:200]!r}")


def _kind(error: Json) -> tuple[Any, Any]:
    return error.get("type"), error.get("code")


def _differ(one: object, whole: Answer) -> list[str]:
    return [f"chat: the stream is {str(one)[:500]}, JSON {whole.status} {whole.body[:500]!r}"]


def _defects(error: Json) -> list[str]:
    return ["chat: it failed by a defect"] if DEFECT in error.get("message", "") else []
