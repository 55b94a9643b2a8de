"""Responses of a hostile upstream: recorded streams with modified events, bytes, HTTP framing or endings.

Each play is generated from its number alone, so it can be repeated.
"""

import gzip
import json
import random
import re
from typing import Any, Literal

from msgspec import Struct

from drills.engines.event_mutations import MUTATIONS, WIRE_NAMES, Mutation, giant, split_events
from drills.engines.http_framing import FRAMINGS, STREAM, frame_payload, make_chunk
from tests.engines.http.stubs.mutations import mutate, split_bytes
from tests.engines.http.stubs.recorded_streams import RECORDED_STREAMS

End = Literal["keep", "close", "reset", "silent"]

_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]{0,99}\r\n")
_FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"')


class Play(Struct, frozen=True, kw_only=True):
    """One defective response of the upstream.

    `proper_end`: a readable event gives the finish reason, and no event before it is invalid or an error. None: this
    depends on how the HTTP framing is interpreted.
    """

    number: int
    wire: str
    changes: str
    pieces: list[bytes]
    end: End
    proper_end: bool | None

    @property
    def may_complete(self) -> bool:
        """Whether the response may complete; with uncertain framing, whether the bytes contain a finish reason."""
        if self.proper_end is not None:
            return self.proper_end
        data = b"".join(self.pieces)
        return bool(_FINISH_REASON.search(data) or _FINISH_REASON.search(_remove_chunk_framing(data)))


def _remove_chunk_framing(data: bytes) -> bytes:
    """Return `data` without its chunk sizes, as far as they can be recognised."""
    remaining, found = data, []
    while remaining.startswith(b"HTTP/"):
        head, _, remaining = remaining.partition(b"\r\n\r\n")
        found.append(head)
    while chunk := _CHUNK_SIZE.match(remaining):
        begin, size = chunk.end(), int(chunk[1], 16)
        found.append(remaining[begin : begin + size])
        remaining = remaining[begin + size :].removeprefix(b"\r\n")
    return b"".join([*found, remaining])


def make_marker(number: int) -> str:
    """Return the unique text at the beginning of a play's answer."""
    return f"<{number}.{number * 7919 % 9973}>"  # the checksum detects a number that was altered by a flipped bit


def make_play(number: int) -> Play:
    chance = random.Random(number)
    name = WIRE_NAMES[number % len(WIRE_NAMES)]
    first_event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}' % make_marker(number).encode()
    events = [first_event, *split_events(RECORDED_STREAMS[name].body)]
    changes: list[str] = []
    for change in _choose_mutations(chance):
        changes.append(change.__name__)
        events = change(events, chance) or [first_event]
    payload = b"".join(event + b"\n\n" for event in events)
    if chance.random() < 0.25:
        changes.append("bytes")
        payload = mutate(payload, chance)
    if chance.random() < 0.1:
        changes.append("returns")
        payload = payload.replace(b"\n", b"\r\n")
    return _make_delivery(number, name, changes, payload, chance)


def _choose_mutations(chance: random.Random) -> list[Mutation]:
    if chance.random() < 0.01:
        return [giant]
    return chance.choices(MUTATIONS, k=chance.choice((0, 0, 1, 1, 1, 2, 3)))


def _make_delivery(number: int, wire: str, changes: list[str], payload: bytes, chance: random.Random) -> Play:
    proper_end: bool | None = has_proper_end(payload)
    match chance.randrange(10):
        case 0 | 1 | 2:
            head = chance.choice(FRAMINGS)
            changes.append(head.__name__)
            proper_end, data = None, head(payload, chance)
        case 3:
            changes.append("frames")
            proper_end, data = None, mutate(frame_payload(payload, chance), chance)
        case 4:
            changes.append("gzip")
            zipped = gzip.compress(payload, 1)
            data = (
                STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + make_chunk(zipped) + b"0\r\n\r\n"
            )
            proper_end = has_proper_end(zipped)
        case _:
            data = frame_payload(payload, chance)
    end: End = "keep"
    if chance.random() < 0.2:
        end = chance.choices(("close", "reset", "silent"), (5, 2, 1))[0]
        data = data[: chance.randrange(len(data) + 1)]
        if end == "reset":  # a reset discards unread data, so the data must not contain the finish reason
            found = _FINISH_REASON.search(data)
            data = data[: found.start()] if found else data
        changes.append(end)
        proper_end = None
    cuts = [chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 3, 30)))]
    return Play(
        number=number,
        wire=wire,
        changes=" ".join(changes),
        pieces=split_bytes(data, cuts),
        end=end,
        proper_end=proper_end,
    )


def has_proper_end(payload: bytes) -> bool:
    """Return whether the answer in these events ends properly, according to a minimal independent parser."""
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
        if _has_finish_reason(event):
            return True
    return False


def _has_finish_reason(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("finish_reason"), str) and first["finish_reason"] != ""
