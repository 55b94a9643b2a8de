"""Sends a request twice, as a stream and for JSON, and reports problems of each answer and differences between them."""

import asyncio
import re
from typing import Any

from msgspec import Struct

from drills.engines.playbook import make_marker
from drills.harness import oracle
from drills.harness.client import Answer, Client, Stream

Json = dict[str, Any]

HANG_SECONDS = 15.0
FAILED = "failed"
TOOLS: list[Json] = [{"type": "function", "name": name, "parameters": {}} for name in ("a", "b", "get_weather")]
_MARKER = re.compile(r"<(\d{1,9})\.\d+>")
_GENERATED_IDS = frozenset({"id", "call_id"})
DEFECT = "made a mistake"


class Verdict(Struct):
    """The outcome of a request, and one sentence for each problem."""

    outcome: str
    problems: list[str]

    @property
    def may_be_timeout(self) -> bool:
        """Whether the problem may only be a timeout of one of the two requests on a busy machine."""
        return any("in time" in sentence or "too long" in sentence for sentence in self.problems)


async def judge_response(client: Client, prompt: str, own: int | None = None, **fields: Any) -> Verdict:
    """Send the request and judge the answers. `own` is the only number whose marker they may contain."""
    body = {"model": "m", "input": prompt, "tools": TOOLS, "store": False, **fields}
    try:
        async with asyncio.timeout(HANG_SECONDS):
            stream, answer = await asyncio.gather(client.stream({**body, "stream": True}), client.post(body))
    except TimeoutError:
        return Verdict("hangs", ["the response hangs"])
    except (EOFError, ConnectionError) as error:
        return Verdict("torn", [f"the stream broke off: {error!r}"])
    try:
        return _compare(stream, answer, own)
    except oracle.InvalidStream as wrong:
        return Verdict("wrong", [f"invalid stream: {wrong}"])


def _compare(stream: Stream, answer: Answer, own: int | None) -> Verdict:
    if not stream.is_event_stream:
        return Verdict("refused", [f"the stream was rejected with HTTP status {stream.status}"])
    response = oracle.terminal_response(stream.frames)
    outcome, error = response["status"], response["error"]
    problems = []
    if outcome == FAILED:
        json_error = answer.error()
        if (json_error.get("code") or json_error.get("type")) != error["code"]:
            problems.append(f"the error of the stream is {error}, that of JSON {answer.status} {answer.body[:300]!r}")
        if DEFECT in error["message"] or DEFECT in json_error.get("message", ""):
            problems.append("the response failed with an internal error")
    elif answer.status != 200 or _comparable_fields(answer.json()) != _comparable_fields(response):
        problems.append(f"the stream is {_comparable_fields(response)}, JSON {answer.status} {answer.body[:1000]!r}")
    if foreign := find_foreign_plays(oracle.output_text(response), own):
        problems.append(f"it contains text of the plays {foreign}")
    return Verdict(outcome, problems)


def find_foreign_plays(text: str, own: int | None) -> set[int]:
    """Return the numbers of other plays whose markers are in the text."""
    return {int(found[1]) for found in _MARKER.finditer(text) if found[0] == make_marker(int(found[1]))} - {own}


def _comparable_fields(response: Json) -> Json:
    """Return the fields that must be equal in both answers."""
    names = ("status", "output", "usage", "incomplete_details", "error")
    return {name: _strip_ids(response.get(name)) for name in names}


def _strip_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strip_ids(one) for name, one in value.items() if name not in _GENERATED_IDS}
    return [_strip_ids(one) for one in value] if isinstance(value, list) else value
