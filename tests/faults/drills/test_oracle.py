"""The drills' own judges: they must be able to find something."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drills.harness.journal import Audit, Journal, new_nonce, nonce_in
from drills.harness.kill_points import Trap
from drills.harness.oracle import Json, Wrong, event, whole


def _frame(kind: str, number: int, **fields: Any) -> bytes:
    data = {"type": kind, "sequence_number": number, **fields}
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data)


def _response(status: str, output: list[Json]) -> Json:
    return {"id": "resp_1", "status": status, "output": output, "error": None}


def _item(status: str) -> Json:
    content = [{"type": "output_text", "text": "Hello"}] if status == "completed" else []
    return {"id": "msg_1", "type": "message", "status": status, "content": content}


def _stream() -> list[bytes]:
    part = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        _frame("response.created", 0, response=_response("in_progress", [])),
        _frame("response.output_item.added", 1, output_index=0, item=_item("in_progress")),
        _frame("response.output_text.delta", 2, delta="Hel", **part),
        _frame("response.output_text.delta", 3, delta="lo", **part),
        _frame("response.output_text.done", 4, text="Hello", **part),
        _frame("response.output_item.done", 5, output_index=0, item=_item("completed")),
        _frame("response.completed", 6, response=_response("completed", [_item("completed")])),
    ]


def _without(at: int) -> Callable[[list[bytes]], None]:
    return lambda frames: frames.__delitem__(at)


def _with(at: int, old: bytes, new: bytes) -> Callable[[list[bytes]], None]:
    return lambda frames: frames.__setitem__(at, frames[at].replace(old, new))


def test_a_right_stream_is_found_right() -> None:
    assert whole(_stream()) == _response("completed", [_item("completed")])


@pytest.mark.parametrize(
    "damage",
    [
        _without(-1),
        _without(0),
        _without(2),
        lambda frames: frames.append(frames[-1]),
        lambda frames: frames.append(_frame("response.in_progress", 7, response=_response("in_progress", []))),
        _with(3, b'"lo"', b'"la"'),
        _with(5, b"msg_1", b"msg_2"),
        _with(6, b"Hello", b"Hallo"),
        _with(6, b"resp_1", b"resp_2"),
        _with(6, b'"status":"completed","output"', b'"status":"queued","output"'),
        _with(4, b"event: response.output_text.done", b"event: response.output_text.delta"),
        _with(4, b'"text"', b"text"),
    ],
)
def test_a_damaged_stream_is_found_out(damage: Callable[[list[bytes]], None]) -> None:
    frames = _stream()
    damage(frames)
    with pytest.raises(Wrong):
        whole(frames)


def test_a_frame_is_an_event() -> None:
    assert event(_stream()[0])["type"] == "response.created"


def test_a_turn_that_is_generated_after_its_end_is_found_out(tmp_path: Path) -> None:
    journal, audit, nonce = Journal(tmp_path / "journal"), Audit(tmp_path / "journal"), new_nonce()
    journal.write("begun", id="resp_1", nonce=nonce)
    journal.write("generate", nonce=nonce)
    journal.write("cancelled", nonce=nonce)
    journal.write("generate", nonce=nonce)
    journal.write("generated", nonce=nonce)
    journal.write("committed", id="resp_1", fence=2)
    assert audit.news() == []
    assert len(audit.generated[nonce]) == 2
    journal.write("generate", nonce=nonce)
    assert len(audit.news()) == 1


def test_two_owners_that_end_one_response_are_found_out(tmp_path: Path) -> None:
    journal, audit = Journal(tmp_path / "journal"), Audit(tmp_path / "journal")
    journal.write("committed", id="resp_1", fence=1)
    journal.write("committed", id="resp_1", fence=1)
    assert audit.news() == []
    journal.write("committed", id="resp_1", fence=2)
    assert len(audit.news()) == 1


def test_a_trap_springs_once_at_its_point() -> None:
    sprung: list[str] = []
    trap = Trap(lambda: sprung.append("dead"))
    trap.arm("store.finish:after:2")
    for point in (
        "store.finish:before",
        "store.finish:after",
        "store.begin:after",
        "store.finish:after",
        "store.finish:after",
    ):
        trap.reach(point)
    assert sprung == ["dead"]


def test_a_turn_is_known_by_the_last_word_of_its_kind() -> None:
    first, last = new_nonce(), new_nonce()
    assert nonce_in(f"{first} and then {last}.".encode()) == last
    assert nonce_in(b"nothing of the kind") == ""
