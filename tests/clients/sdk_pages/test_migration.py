"""The pages in docs/migrate: their programs run against a real server, and requests are answered as the tables say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from antiphon.config.sources import load
from tests.clients.sdk_pages.client_pages import extract_block, extract_blocks, run_script, run_scripts
from tests.support.paths import DOCS
from tests.support.server_process import ServerProcess

PAGES = sorted(path.stem for path in (DOCS / "migrate").glob("*.md"))
ROW = re.compile(r"^\| `([^`]+)` \| (\d{3}|ignored|works) \|", re.MULTILINE)
BEFORE, AFTER = "# before\n", "# after\n"
NEWEST = 1_700_000_044


def name_page(name: str) -> str:
    return f"../migrate/{name}.md"


def list_rows() -> list[tuple[str, str]]:
    """Return the requests of all tables, each with its answer."""
    texts = [(DOCS / "migrate" / f"{page}.md").read_text("utf-8") for page in PAGES]
    return sorted({row for text in texts for row in ROW.findall(text)})


def make_message(number: int, role: str, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": f"msg_{number}", "role": role, "created_at": NEWEST - 44 + number, "content": [*parts], **fields}


def make_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": {"value": text, "annotations": []}}


@pytest.fixture
def threads(tmp_path: Path) -> Path:
    """Two exported threads in a folder: one of 45 messages, with images and files, and one whose messages are young."""
    image = {"type": "image_url", "image_url": {"url": "https://example.com/otter.png"}}
    drawing = {"type": "image_file", "image_file": {"file_id": "file-1"}}
    messages = [make_message(number, "user", make_text(f"question {number}")) for number in range(42)]
    messages += [
        make_message(42, "user", make_text("Look!"), image, attachments=[{"file_id": "file-2"}]),
        make_message(43, "assistant", make_text("An otter."), drawing),
        make_message(43, "user"),  # empty, in the same second
        make_message(44, "user", make_text("Thanks.")),
    ]
    (tmp_path / "threads").mkdir()
    for name, data in (("thread_long", messages), ("thread_short", messages[-1:])):
        content = {"object": "list", "data": [*reversed(data)], "has_more": False}
        (tmp_path / "threads" / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture(scope="module")
def outputs(guide_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the programs of all pages print."""
    programs = [extract_block(name_page(page), "python", AFTER, port=guide_server.port) for page in PAGES]
    programs = [program.replace("127.0.0.1:9000", f"127.0.0.1:{guide_server.port}") for program in programs]
    return dict(zip(PAGES, run_scripts(programs, tmp_path_factory.mktemp("migrate")), strict=True))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.shows("I1.91")
def test_the_code_after_a_move_prints_what_its_page_shows(page: str, outputs: dict[str, str]) -> None:
    assert outputs[page] == extract_block(name_page(page), "text")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_listed_and_the_code_before_a_move_is_valid(page: str) -> None:
    assert (DOCS / "index.md").read_text("utf-8").count(f"(migrate/{page}.md)") == 1
    compile(extract_block(name_page(page), "python", BEFORE), page, "exec")
    assert len(extract_blocks(name_page(page), "python")) == 2 + (page == "from-assistants-api")


@pytest.mark.parametrize(("request_text", "answer"), list_rows())
@pytest.mark.shows("I1.91")
def test_a_request_is_answered_as_a_table_says(request_text: str, answer: str, guide_server: ServerProcess) -> None:
    if not request_text.startswith("{"):
        method, path = request_text.split()
        status, _ = guide_server.send(method, path, {} if method == "POST" else None)
        assert str(status) == answer
        return
    fields = json.loads(request_text)
    status, body = guide_server.post({"model": "any", "input": "Hi", **fields})
    if answer.isdigit():
        assert str(status) == answer
        assert json.loads(body)["error"]["param"].startswith(next(iter(fields)))
        return
    ignored = json.loads(body).get("ignored_fields") or []
    assert status == 200
    assert {name.partition(".")[0] for name in ignored} == ({*fields} if answer == "ignored" else set())


@pytest.mark.shows("I1.91")
def test_the_configuration_of_the_page_about_litellm_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(extract_block(name_page("from-litellm"), "toml"))
    monkeypatch.setenv("GPU_2_KEY", "secret")
    config = load({"config": str(file)})
    assert [spec.url for spec in config.inference.engines] == ["vllm://gpu-1:8000", "vllm://gpu-2:8000"]
    assert config.inference.aliases == {"gpt-4o": "Qwen/Qwen3-8B"}


@pytest.mark.shows("I1.92")
def test_exported_threads_become_conversations_once(threads: Path, guide_server: ServerProcess) -> None:
    page = name_page("from-assistants-api")
    program = extract_block(page, "python", "# move_threads.py\n", port=guide_server.port)
    first = "thread_long: 45 items\nthread_short: 1 items\n2 threads are conversations now.\n"
    assert run_script(program, threads) == first
    assert run_script(program, threads) == "2 threads are conversations now.\n"
    ids = json.loads((threads / "conversations.json").read_text())
    with OpenAI(base_url=guide_server.v1, api_key="unused") as client:
        assert client.conversations.retrieve(ids["thread_long"]).metadata == {"thread": "thread_long"}
        items: list[Any] = [*client.conversations.items.list(ids["thread_long"], order="asc", limit=100)]
        texts = [item.content[0].text for item in items]
        assert texts == [*(f"question {number}" for number in range(42)), "Look!", "An otter.", "Thanks."]
        question, answer, _ = items[-3:]
        assert [part.type for part in question.content] == ["input_text", "input_image", "input_text"]
        assert question.content[2].text == "[file file-2]"
        assert [part.text for part in answer.content] == ["An otter.", "[image_file file-1]"]
        response = client.responses.create(model="any", conversation=ids["thread_short"], input="Hi")
        assert response.status == "completed"
