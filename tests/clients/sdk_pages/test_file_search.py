"""The programs of docs/file-search.md run as they are written, except for the address, with the fake engine."""

from pathlib import Path

import pytest

from tests.clients.sdk_pages.client_pages import run_program
from tests.support.server_process import ServerProcess

HANDBOOK = "Everybody has 30 days off. The office is closed on Sundays."


@pytest.mark.shows("E.16", "E.27")
def test_the_documented_programs_print_answers_citations_and_passages(
    fake_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "handbook.txt").write_text(HANDBOOK)
    output = run_program("../file-search.md", fake_server.port, tmp_path)
    answer, citations, passage = output.strip().rsplit("\n", 2)
    assert HANDBOOK in answer
    assert "【" not in answer
    assert citations.startswith("[('handbook.txt', ")
    assert passage.startswith("handbook.txt (0.")
    assert passage.endswith(f"): {HANDBOOK}")
