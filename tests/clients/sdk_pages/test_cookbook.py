"""The programs of docs/cookbook run as they are written, except for the address, with the fake engine."""

from pathlib import Path

import pytest

from tests.clients.sdk_pages.client_pages import run_program
from tests.support.server_process import ServerProcess

DOCUMENTS = {
    "office/handbook.md": "The office is open from nine to five.",
    "travel/booking.txt": "The secretary books all hotels.",
    "travel/expenses.txt": "A hotel may cost 150 euros for one night.",
    "travel/picture.png": "\x89PNG",
}


@pytest.mark.shows("E.16", "E.27", "E5.7")
def test_the_program_that_asks_documents_prints_answers_with_their_sources(
    fake_server: ServerProcess, tmp_path: Path
) -> None:
    for name, text in DOCUMENTS.items():
        path = tmp_path / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "latin-1")
    output = run_program("../cookbook/ask-your-documents.md", fake_server.port, tmp_path)
    assert output.startswith("not indexed: documents/travel/picture.png ")
    first, second, third = output.split("The tool said: ")[1:]
    for answer in (first, second):
        assert "[booking.txt]" in answer
        assert "documents/travel/expenses.txt (0." in answer
        assert "handbook" not in answer
    assert "[handbook.md]" in third
    assert "【" not in output
