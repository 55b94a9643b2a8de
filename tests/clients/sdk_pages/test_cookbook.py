"""The programs of docs/cookbook run as they are written, except for the address, with the fake engine."""

from pathlib import Path

import pytest

from antiphon.core.images import read_image_info
from tests.clients.sdk_pages.client_pages import extract_block, run_program
from tests.support.server_process import ServerProcess, run_server

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


@pytest.mark.needs("chromium")
@pytest.mark.shows("E1.1", "E1.2", "H1.3")
def test_the_program_that_uses_a_browser_fills_in_the_form(tmp_path: Path) -> None:
    page = "../cookbook/browser-loop.md"
    for name, language in (("form.html", "html"), ("browse.toml", "toml")):
        (tmp_path / name).write_text(extract_block(page, language))
    with run_server(
        "--engine", "fake", "--fake-script", str(tmp_path / "browse.toml"), "--enable-computer-call"
    ) as server:
        output = run_program(page, server.port, tmp_path, "--no-sandbox", "--disable-background-networking")
    assert output.count("action:") == 7  # a screenshot, five actions, and the screenshot after them
    assert "answer: The page shows that an otter is ordered." in output
    assert "title: Ordered: an otteR" in output
    image = read_image_info((tmp_path / "last.png").read_bytes())
    assert (image.width, image.height) == (1024, 768)
