import json
import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import StartupError
from antiphon.observe.access_log import AccessLog, Line


def line(number: int = 1, **more: Any) -> Line:
    given = {"time": 1_700_000_000.25, "method": "GET", "route": "/health", "status": 200, "seconds": 0.0012345678}
    return Line(request_id=f"req_{number}", **{**given, **more})


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def test_a_request_is_one_line_with_what_is_known_of_it(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.open()
    log.note(line(tenant="default", output_tokens=3, user='"}\n{"forged": 1'))
    log.close()
    assert written(tmp_path / "log") == [
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


def test_all_is_written_in_order_before_it_is_closed(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.open()
    for number in range(5000):
        log.note(line(number))
    log.close()
    assert [one["request_id"] for one in written(tmp_path / "log")] == [f"req_{number}" for number in range(5000)]
    assert log.dropped == 0


def test_what_finds_no_room_is_counted(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"), most=10)
    for number in range(25):
        log.note(line(number))
    assert log.dropped == 15
    log.open()
    log.close()
    assert len(written(tmp_path / "log")) == 10


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.note(line(1))
    log._write()
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.note(line(2))
    log._write()
    assert [one["request_id"] for one in written(tmp_path / "log.1")] == ["req_1"]
    assert [one["request_id"] for one in written(tmp_path / "log")] == ["req_2"]


def test_it_is_not_for_everybody_to_read(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.note(line())
    log._write()
    assert os.stat(tmp_path / "log").st_mode & 0o007 == 0


def test_a_disk_that_takes_nothing_costs_lines_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AccessLog(str(tmp_path / "missing" / "log"))
    for number in range(3):
        log.note(line(number))
        log._write()
    assert log.dropped == 3
    assert caplog.text.count("The access log cannot be written") == 1
    (tmp_path / "missing").mkdir()
    log.note(line(4))
    log._write()
    assert [one["request_id"] for one in written(tmp_path / "missing" / "log")] == ["req_4"]


def test_a_place_that_cannot_be_written_at_the_start_is_told_before_the_first_request(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "missing" / "log"))
    with pytest.raises(
        StartupError, match=r"log cannot be written: No such file or directory\. Name another file with"
    ):
        log.open()
    log.close()
