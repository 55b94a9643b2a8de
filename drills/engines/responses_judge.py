"""Asks twice, for a stream and for JSON, and says what is wrong with the answers by themselves and with each other."""

import asyncio
import re
from typing import Any

from msgspec import Struct

from drills.engines.playbook import mark
from drills.harness import oracle
from drills.harness.client import Answer, Client, Stream

Json = dict[str, Any]

HANG_SECONDS = 15.0
FAILED = "failed"
TOOLS: list[Json] = [{"type": "function", "name": name, "parameters": {}} for name in ("a", "b", "get_weather")]
_MARK = re.compile(r"<(\d{1,9})\.\d+>")
_OWN = frozenset({"id", "call_id"})
DEFECT = "made a mistake"


class Verdict(Struct):
    """`fate` is how it ended."""

    fate: str
    wrong: list[str]

    @property
    def late(self) -> bool:
        """Whether it may be wrong only because this machine was too busy for one of the two."""
        return any("in time" in sentence or "silent" in sentence for sentence in self.wrong)


async def judged(client: Client, asked: str, own: int | None = None, **fields: Any) -> Verdict:
    """`own` is the number whose mark an answer may have, and no other one's."""
    body = {"model": "m", "input": asked, "tools": TOOLS, "store": False, **fields}
    try:
        async with asyncio.timeout(HANG_SECONDS):
            stream, whole = await asyncio.gather(client.stream({**body, "stream": True}), client.post(body))
    except TimeoutError:
        return Verdict("hangs", ["it hangs"])
    except (EOFError, ConnectionError) as error:
        return Verdict("torn", [f"the stream is torn: {error!r}"])
    try:
        return _compared(stream, whole, own)
    except oracle.Wrong as wrong:
        return Verdict("wrong", [f"the stream is none: {wrong}"])


def _compared(stream: Stream, whole: Answer, own: int | None) -> Verdict:
    if not stream.streams:
        return Verdict("refused", [f"the stream was refused with HTTP status {stream.status}"])
    response = oracle.whole(stream.frames)
    fate, error = response["status"], response["error"]
    wrong = []
    if fate == FAILED:
        told = whole.error()
        if (told.get("code") or told.get("type")) != error["code"]:
            wrong.append(f"the stream says {error}, JSON {whole.status} {whole.body[:300]!r}")
        if DEFECT in error["message"] or DEFECT in told.get("message", ""):
            wrong.append("it failed by a defect")
    elif whole.status != 200 or _said(whole.json()) != _said(response):
        wrong.append(f"the stream is {_said(response)}, JSON {whole.status} {whole.body[:1000]!r}")
    if foreign := strangers(oracle.text_of(response), own):
        wrong.append(f"it has words of {foreign}")
    return Verdict(fate, wrong)


def strangers(text: str, own: int | None) -> set[int]:
    """Whose words are in it, and do not belong there."""
    return {int(found[1]) for found in _MARK.finditer(text) if found[0] == mark(int(found[1]))} - {own}


def _said(response: Json) -> Json:
    """What must be the same in both."""
    names = ("status", "output", "usage", "incomplete_details", "error")
    return {name: _without_ids(response.get(name)) for name in names}


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ids(one) for name, one in value.items() if name not in _OWN}
    return [_without_ids(one) for one in value] if isinstance(value, list) else value
