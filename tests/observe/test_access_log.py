"""Tests the access log: its JSON lines, its bounded queue, and its behaviour when the file is moved or unwritable."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import StartupError
from antiphon.observe.logs import AccessLog, AccessLogEntry


def make_entry(number: int = 1, **fields: Any) -> AccessLogEntry:
    defaults = {"time": 1_700_000_000.25, "method": "GET", "route": "/health", "status": 200, "seconds": 0.0012345678}
    return {"request_id": f"req_{number}", **defaults, **fields}


def read_entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def test_a_request_is_logged_as_one_json_line(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.open()
    log.record(make_entry(tenant="default", output_tokens=3, user='"}\n{"forged": 1'))
    log.close()
    assert read_entries(tmp_path / "log") == [
        {
            "time": "2023-11-14T22:13:20.250Z",
            "request_id": "req_1",
            "method": "GET",
            "route": "/health",
            "status": 200,
            "seconds": 0.001235,
            "tenant": "default",
            "output_tokens": 3,
            "user": '"}\n{"forged": 1',
        }
    ]


def test_close_writes_all_entries_in_order(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.open()
    for number in range(5000):
        log.record(make_entry(number))
    log.close()
    assert [one["request_id"] for one in read_entries(tmp_path / "log")] == [f"req_{number}" for number in range(5000)]
    assert log.dropped == 0


def test_entries_beyond_the_queue_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"), max_waiting=10)
    for number in range(25):
        log.record(make_entry(number))
    assert log.dropped == 15
    log.open()
    log.close()
    assert len(read_entries(tmp_path / "log")) == 10


def test_a_renamed_log_file_is_created_again(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.record(make_entry(1))
    log._write()
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.record(make_entry(2))
    log._write()
    assert [one["request_id"] for one in read_entries(tmp_path / "log.1")] == ["req_1"]
    assert [one["request_id"] for one in read_entries(tmp_path / "log")] == ["req_2"]


def test_the_log_file_is_not_accessible_to_other_users(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.record(make_entry())
    log._write()
    assert os.stat(tmp_path / "log").st_mode & 0o007 == 0


def test_an_unwritable_log_drops_entries_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(str(tmp_path / "missing" / "log"))
    for number in range(3):
        log.record(make_entry(number))
        log._write()
    assert log.dropped == 3
    assert caplog.text.count("The access log cannot be written") == 1
    (tmp_path / "missing").mkdir()
    log.record(make_entry(4))
    log._write()
    assert [one["request_id"] for one in read_entries(tmp_path / "missing" / "log")] == ["req_4"]


def test_open_raises_when_the_log_cannot_be_written(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "missing" / "log"))
    with pytest.raises(
        StartupError, match=r"log cannot be written: No such file or directory\. Name another file with"
    ):
        log.open()
    log.close()
