"""The oracles of the drills: they accept a valid stream and detect damaged streams and violations in the journal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drills.harness.journal import Journal, JournalAudit, find_nonce, new_nonce
from drills.harness.kill_points import KillPoint
from drills.harness.oracle import InvalidStream, Json, parse_event, terminal_response


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


def _delete_frame(at: int) -> Callable[[list[bytes]], None]:
    return lambda frames: frames.__delitem__(at)


def _replace_in_frame(at: int, old: bytes, new: bytes) -> Callable[[list[bytes]], None]:
    return lambda frames: frames.__setitem__(at, frames[at].replace(old, new))


def test_a_valid_stream_is_accepted() -> None:
    assert terminal_response(_stream()) == _response("completed", [_item("completed")])


@pytest.mark.parametrize(
    "damage",
    [
        _delete_frame(-1),
        _delete_frame(0),
        _delete_frame(2),
        lambda frames: frames.append(frames[-1]),
        lambda frames: frames.append(_frame("response.in_progress", 7, response=_response("in_progress", []))),
        _replace_in_frame(3, b'"lo"', b'"la"'),
        _replace_in_frame(5, b"msg_1", b"msg_2"),
        _replace_in_frame(6, b"Hello", b"Hallo"),
        _replace_in_frame(6, b"resp_1", b"resp_2"),
        _replace_in_frame(6, b'"status":"completed","output"', b'"status":"queued","output"'),
        _replace_in_frame(4, b"event: response.output_text.done", b"event: response.output_text.delta"),
        _replace_in_frame(4, b'"text"', b"text"),
    ],
)
def test_a_damaged_stream_is_detected(damage: Callable[[list[bytes]], None]) -> None:
    frames = _stream()
    damage(frames)
    with pytest.raises(InvalidStream):
        terminal_response(frames)


def test_a_frame_is_parsed_as_an_event() -> None:
    assert parse_event(_stream()[0])["type"] == "response.created"


def test_a_generation_after_the_end_of_a_turn_is_detected(tmp_path: Path) -> None:
    journal, audit, nonce = Journal(tmp_path / "journal"), JournalAudit(tmp_path / "journal"), new_nonce()
    journal.write("begun", id="resp_1", nonce=nonce)
    journal.write("generate", nonce=nonce)
    journal.write("cancelled", nonce=nonce)
    journal.write("generate", nonce=nonce)
    journal.write("generated", nonce=nonce)
    journal.write("committed", id="resp_1", fence=2)
    assert audit.check_new_lines() == []
    assert len(audit.generated[nonce]) == 2
    journal.write("generate", nonce=nonce)
    assert len(audit.check_new_lines()) == 1


def test_a_response_ended_by_two_owners_is_detected(tmp_path: Path) -> None:
    journal, audit = Journal(tmp_path / "journal"), JournalAudit(tmp_path / "journal")
    journal.write("committed", id="resp_1", fence=1)
    journal.write("committed", id="resp_1", fence=1)
    assert audit.check_new_lines() == []
    journal.write("committed", id="resp_1", fence=2)
    assert len(audit.check_new_lines()) == 1


@pytest.mark.parametrize("claimed_first", [True, False])
def test_a_response_ended_by_a_server_that_has_lost_it_is_detected(tmp_path: Path, claimed_first: bool) -> None:
    journal, audit = Journal(tmp_path / "journal"), JournalAudit(tmp_path / "journal")
    journal.write("claimed", id="resp_1", fence=2)
    journal.write("committed", id="resp_1", fence=2)
    assert audit.check_new_lines() == []
    lines = [("claimed", 2), ("committed", 1)] if claimed_first else [("committed", 1), ("claimed", 2)]
    for event, fence in lines:
        journal.write(event, id="resp_2", fence=fence)  # type: ignore[arg-type]  # names of JournalEvent
    assert len(audit.check_new_lines()) == 1


def test_a_trap_triggers_once_at_its_kill_point() -> None:
    triggered: list[str] = []
    trap = KillPoint(lambda: triggered.append("dead"))
    trap.arm("store.finish:after:2")
    for point in (
        "store.finish:before",
        "store.finish:after",
        "store.begin:after",
        "store.finish:after",
        "store.finish:after",
    ):
        trap.reach(point)
    assert triggered == ["dead"]


def test_a_turn_is_identified_by_its_last_nonce() -> None:
    first, last = new_nonce(), new_nonce()
    assert find_nonce(f"{first} and then {last}.".encode()) == last
    assert find_nonce(b"nothing of the kind") == ""
