"""The programs of docs/cookbook run as they are written, except for the address, with the fake engine.

The fake engine plays the scripts of the pages, and a program prints what its page shows.
"""

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from antiphon.core.images import read_image_info
from tests.clients.sdk_pages.client_pages import extract_block, extract_blocks, run_program, run_script, run_scripts
from tests.support.chromium import run_browser
from tests.support.paths import DOCS
from tests.support.sandboxes import keep_sandbox
from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server
from tests.support.services import free_port

pytestmark = pytest.mark.slow

DOCUMENTS = {
    "office/handbook.md": "The office is open from nine to five.",
    "travel/booking.txt": "The secretary books all hotels.",
    "travel/expenses.txt": "A hotel may cost 150 euros for one night.",
    "travel/picture.png": "\x89PNG",
}
# Pages that one server serves: it plays all of their scripts.
PLAIN = ("agent-loop", "agents-with-memory", "background", "lanes-and-steering", "structured-output")
SHARED = (*PLAIN, "approvals", "resumable-page")
PAGES = sorted(path.stem for path in (DOCS / "cookbook").glob("*.md"))
MAX_LINES = 60
LONG = {"browser-loop"}  # explained part by part, as is ask-your-documents


def name_page(name: str) -> str:
    return f"../cookbook/{name}.md"


def extract_script(name: str) -> str:
    return extract_block(name_page(name), "toml", "[[reply]]")


def read_printed(name: str) -> str:
    """Return what a page says that its program prints."""
    return extract_block(name_page(name), "text")


def write_file(folder: Path, page: str, name: str, port: int = 8000) -> str:
    """Write the program whose first line is its name, and return it."""
    program = extract_block(name_page(page), "python", f"# {name}\n", port=port)
    (folder / name).write_text(program)
    return program


def wait_for_server(port: int) -> None:
    for _ in repeat_until_timeout():
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            return


@contextmanager
def run_commands_beside_python() -> Iterator[pytest.MonkeyPatch]:
    """Let processes find the programs of this environment, such as `antiphon` and `python`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield patch


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that plays the scripts of several pages, in a folder with the MCP server of one of them."""
    folder = tmp_path_factory.mktemp("cookbook")
    (folder / "script.toml").write_text("\n".join(map(extract_script, SHARED)))
    (folder / "antiphon.toml").write_text(extract_block(name_page("approvals"), "toml", "[[mcp]]"))
    write_file(folder, "approvals", "shop.py")
    with run_commands_beside_python() as patch:
        patch.chdir(folder)
        with run_server(
            "--engine", "fake", "--fake-script", "script.toml", "--config", "antiphon.toml", "--store", "memory",
            "--served-model-name", "qwen3-coder",
        ) as server:  # fmt: skip
            yield server


@pytest.fixture(scope="module")
def outputs(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the programs of plain pages print."""
    programs = [extract_block(name_page(page), "python", port=server.port) for page in PLAIN]
    return dict(zip(PLAIN, run_scripts(programs, tmp_path_factory.mktemp("programs")), strict=True))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_listed_and_its_programs_are_short(page: str) -> None:
    assert (DOCS / "index.md").read_text("utf-8").count(f"(cookbook/{page}.md)") == 1
    lengths = [program.count("\n") for program in extract_blocks(name_page(page), "python")]
    assert page in LONG or max(lengths, default=0) <= MAX_LINES


@pytest.mark.parametrize("page", PLAIN)
@pytest.mark.shows("I1.90")
def test_a_program_prints_what_its_page_shows(page: str, outputs: dict[str, str]) -> None:
    assert outputs[page] == read_printed(page)


@pytest.mark.shows("I1.90", "E.9")
def test_refunds_are_made_after_an_approval_only(server: ServerProcess, tmp_path: Path) -> None:
    program = write_file(tmp_path, "approvals", "approve.py", server.port)
    assert run_script(program, tmp_path) == read_printed("approvals")


@pytest.mark.needs("chromium")
@pytest.mark.shows("I1.90", "A.5")
def test_a_reloaded_page_continues_its_answer_without_a_gap(server: ServerProcess, tmp_path: Path) -> None:
    port = free_port()
    program = write_file(tmp_path, "resumable-page", "app.py", server.port).replace("8080", str(port))
    (tmp_path / "page.html").write_text(extract_block(name_page("resumable-page"), "html"))
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path) as app, run_browser() as browser:
        try:
            wait_for_server(port)
            with browser.new_page() as page:
                page.open(url)
                page.click("button")
                page.wait_for_text("Once upon a time")
                page.open(url)
                page.wait_for_text("Once upon a time there was an otter.")
                assert page.evaluate("document.querySelector('#answer').textContent.length") == 36
                first, *resumed = [one for one in page.urls if "/events/" in one]
                assert first.endswith("after=0")
                assert resumed
                assert not any(one.endswith("after=0") for one in resumed)
        finally:
            app.terminate()


@pytest.mark.shows("I1.90", "E.18")
def test_the_program_that_analyses_a_table_saves_the_file_of_the_code(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(extract_script("data-analysis"))
    with keep_sandbox("auto") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        options = ("--sandbox-folder", str(found.folder), "--sandbox-python", found.python)
        with run_server("--engine", "fake", "--fake-script", str(script), *options) as server:
            output = run_program(name_page("data-analysis"), server.port, tmp_path)
    assert output == read_printed("data-analysis")
    assert (tmp_path / "sum.txt").read_text() == "360"


@pytest.mark.shows("I1.90", "B.7")
def test_the_work_of_a_killed_server_is_finished_by_another(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(extract_script("two-replicas"))
    program = extract_block(name_page("two-replicas"), "python")
    for port in ("8001", "8002"):
        program = program.replace(port, str(free_port()))
    with run_commands_beside_python() as patch:
        patch.setenv("DATABASE_URL", postgres_url)
        output = run_script(program, tmp_path, "--engine", "fake", "--fake-script", "script.toml")
    assert output == read_printed("two-replicas")


@pytest.mark.shows("I1.90", "I4.3")
def test_the_tests_of_an_agent_pass_without_a_model(tmp_path: Path) -> None:
    write_file(tmp_path, "test-an-agent", "test_agent.py")
    (tmp_path / "script.toml").write_text(extract_script("test-an-agent"))
    command = [sys.executable, "-m", "pytest", "-q", "test_agent.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.startswith(read_printed("test-an-agent").rstrip()), result.stdout


@pytest.mark.shows("I1.90", "I2.2", "I2.4")
def test_codex_is_configured_and_restored_by_the_commands_of_its_page(server: ServerProcess, tmp_path: Path) -> None:
    """`make test-clients` runs all commands of the page, with Codex: tests/clients/coding/test_connect.py."""
    page = name_page("codex-on-a-laptop")
    first, _, last = extract_block(page, "bash").splitlines()
    with run_commands_beside_python() as patch:
        patch.delenv("CODEX_HOME", raising=False)
        patch.setenv("HOME", str(tmp_path))
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        patch.setenv("ANTIPHON_URL", server.url)
        shown = subprocess.run(first.split(), capture_output=True, text=True, timeout=60, check=True).stdout
        expected = extract_block(page, "diff", port=server.port).replace("/home/ada", str(tmp_path))
        assert shown.startswith(expected)
        config = tomllib.loads((tmp_path / ".codex" / "config.toml").read_text())
        assert config["model_providers"]["antiphon"]["base_url"] == server.v1
        subprocess.run(last.split(), capture_output=True, timeout=60, check=True)
    assert not (tmp_path / ".codex" / "config.toml").exists()


@pytest.mark.shows("E.16", "E.27", "E5.7")
def test_the_program_that_asks_documents_prints_answers_with_their_sources(
    fake_server: ServerProcess, tmp_path: Path
) -> None:
    for name, text in DOCUMENTS.items():
        path = tmp_path / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "latin-1")
    output = run_program(name_page("ask-your-documents"), fake_server.port, tmp_path)
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
    page = name_page("browser-loop")
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
