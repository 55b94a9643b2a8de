"""`antiphon connect` with the real clients: each answers a question with the files that were written for it."""

import os
import sys

import pytest

from antiphon.clients.catalog import CLIENTS
from tests.clients.coding.client_runner import Client, CommandResult
from tests.clients.coding.codex import EXEC, SUM
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.coding.test_opencode import OFFLINE
from tests.clients.sdk_pages.client_pages import extract_block
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

ANSWER = "Yes, I am here."


def run_connect(client: Client, *arguments: str, **variables: str) -> CommandResult:
    return run_antiphon(client, f"antiphon connect {' '.join(arguments)} --yes", **variables)


def run_antiphon(client: Client, command: str, **variables: str) -> CommandResult:
    source = {"PYTHONPATH": path} if (path := os.environ.get("PYTHONPATH")) else {}
    command = command.replace("antiphon connect", f"{sys.executable} -m antiphon connect")
    return client.run(command, {**OFFLINE, **source, **variables}, seconds=200)


def list_files(client: Client) -> list[str]:
    """Return the files that were written. Clients write others, for example logs."""
    names = {file.name for setup in CLIENTS.values() for file in setup.files}
    folders = [client.home / folder for folder in (".codex", ".claude", ".config")]
    return [file.name for folder in folders for file in folder.rglob("*") if file.name in names]


@pytest.mark.parametrize(
    ("name", "path", "user_agent"),
    [
        ("codex", "/v1/responses", "codex_exec/"),
        ("claude", "/v1/messages", "claude-cli/"),
        ("opencode", "/v1/responses", "opencode/"),
        ("llm", "/v1/responses", "OpenAI/Python"),
    ],
)
@pytest.mark.shows("I2.5")
def test_a_client_answers_after_it_was_connected(
    client: Client, proxy: RecordingProxy, name: str, path: str, user_agent: str
) -> None:
    if not client.has_program(name):
        pytest.skip(f"platform: {name} is pinned for Linux alone")
    ran = run_connect(client, name, "--url", f"http://127.0.0.1:{proxy.port}", "--model", "qwen3-coder", "--check")
    assert ran.code == 0, str(ran)
    assert ran.out.strip().endswith(ANSWER), str(ran)
    posts = [post for post in proxy.get_posts() if post.path.partition("?")[0] == path]
    assert posts
    for post in posts:
        assert post.body["model"] == "qwen3-coder"
        assert post.headers["user-agent"].startswith(user_agent)
    undone = run_connect(client, name, "--undo")
    assert undone.code == 0, str(undone)
    assert list_files(client) == []


@pytest.mark.shows("I2.5")
def test_codex_works_with_its_catalog_and_a_key_from_the_environment(
    client: Client, protected_server: ServerProcess
) -> None:
    url, key = protected_server.url, {"ANTIPHON_API_KEY": "sesame"}
    ran = run_connect(client, "codex", "--url", url, "--check", **key)
    assert ran.code == 0, str(ran)
    assert "sesame" not in (client.home / ".codex" / "config.toml").read_text()
    ran = client.run(f'{EXEC} "Add 40 and 2 with the shell."', key)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert "Model metadata" not in ran.err


@pytest.mark.shows("I2.5", "I1.90")
def test_the_commands_of_the_cookbook_run_codex_and_restore_its_files(
    client: Client, coding_server: ServerProcess
) -> None:
    commands = extract_block("../cookbook/codex-on-a-laptop.md", "bash")
    commands = commands.replace("codex exec --skip-git-repo-check", EXEC)
    ran = run_antiphon(client, f"set -e\n{commands}", ANTIPHON_URL=coding_server.url)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert list_files(client) == []
