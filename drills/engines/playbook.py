"""What a hostile upstream sends: recorded streams, changed in their events, their bytes, their HTTP or their end.

Everything is made from one number, so that what was found once can be played again.
"""

import gzip
import json
import random
import re
from typing import Any, Literal

from msgspec import Struct

from drills.engines.event_mutations import CHANGES, NAMES, Change, events_of, giant
from drills.engines.http_framing import HEADS, STREAM, chunked, framed
from tests.engines.http.stubs.mutations import cut, mutated
from tests.engines.http.stubs.recorded_streams import WIRES

End = Literal["keep", "close", "reset", "silent"]

_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]{0,99}\r\n")
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class Play(Struct, frozen=True, kw_only=True):
    """`sound`: an event that can be read says why the answer ended, and none before it says or is anything bad. None:
    that depends on how HTTP is read."""

    number: int
    wire: str
    what: str
    pieces: list[bytes]
    end: End
    sound: bool | None

    @property
    def may_end_well(self) -> bool:
        """If need be, by the letters: they are there."""
        if self.sound is not None:
            return self.sound
        whole = b"".join(self.pieces)
        return bool(_FINISH.search(whole) or _FINISH.search(_unchunked(whole)))


def _unchunked(data: bytes) -> bytes:
    """Without what is between the chunks of a body, as far as that can be told."""
    rest, found = data, []
    while rest.startswith(b"HTTP/"):
        head, _, rest = rest.partition(b"\r\n\r\n")
        found.append(head)
    while chunk := _SIZE.match(rest):
        begin, size = chunk.end(), int(chunk[1], 16)
        found.append(rest[begin : begin + size])
        rest = rest[begin + size :].removeprefix(b"\r\n")
    return b"".join([*found, rest])


def mark(number: int) -> str:
    """What the answer of this play begins with, and no other one has."""
    return f"<{number}.{number * 7919 % 9973}>"  # a number that one flipped bit makes of it is nobody's


def play(number: int) -> Play:
    chance = random.Random(number)
    name = NAMES[number % len(NAMES)]
    marked = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}' % mark(number).encode()
    events = [marked, *events_of(WIRES[name].body)]
    done: list[str] = []
    for change in _chosen(chance):
        done.append(change.__name__)
        events = change(events, chance) or [marked]
    payload = b"".join(event + b"\n\n" for event in events)
    if chance.random() < 0.25:
        done.append("bytes")
        payload = mutated(payload, chance)
    if chance.random() < 0.1:
        done.append("returns")
        payload = payload.replace(b"\n", b"\r\n")
    return _delivered(number, name, done, payload, chance)


def _chosen(chance: random.Random) -> list[Change]:
    if chance.random() < 0.01:
        return [giant]
    return chance.choices(CHANGES, k=chance.choice((0, 0, 1, 1, 1, 2, 3)))


def _delivered(number: int, wire: str, done: list[str], payload: bytes, chance: random.Random) -> Play:
    sound: bool | None = sounds(payload)
    match chance.randrange(10):
        case 0 | 1 | 2:
            head = chance.choice(HEADS)
            done.append(head.__name__)
            sound, data = None, head(payload, chance)
        case 3:
            done.append("frames")
            sound, data = None, mutated(framed(payload, chance), chance)
        case 4:
            done.append("gzip")
            zipped = gzip.compress(payload, 1)
            data = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + chunked(zipped) + b"0\r\n\r\n"
            sound = sounds(zipped)
        case _:
            data = framed(payload, chance)
    end: End = "keep"
    if chance.random() < 0.2:
        end = chance.choices(("close", "reset", "silent"), (5, 2, 1))[0]
        data = data[: chance.randrange(len(data) + 1)]
        if end == "reset":  # what was not read before it is lost, so there must be no end to lose
            found = _FINISH.search(data)
            data = data[: found.start()] if found else data
        done.append(end)
        sound = None
    places = [chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 3, 30)))]
    return Play(number=number, wire=wire, what=" ".join(done), pieces=cut(data, places), end=end, sound=sound)


def sounds(payload: bytes) -> bool:
    """Whether an answer in these events ends as it should, read in the plainest way there is."""
    for block in payload.replace(b"\r", b"").split(b"\n\n"):
        lines = block.split(b"\n")
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        if data == b"[DONE]":
            return False
        if not data:
            continue
        try:
            event = json.loads(data.decode(errors="replace"), strict=False)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict) or event.get("error") is not None or b"event: error" in lines:
            return False
        if _finish(event):
            return True
    return False


def _finish(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("finish_reason"), str) and first["finish_reason"] != ""
