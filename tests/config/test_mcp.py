"""MCP servers that the operator configures by flags and in the config file.

Covers `config/tool_settings.py`.
"""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.sources import load
from antiphon.config.tool_settings import McpServerSpec
from antiphon.errors import StartupError

FILE = """
mcp_server = ["wiki=https://wiki.example/mcp"]

[[mcp]]
label = "github"
url = "https://api.example/mcp/"
authorization = "env:GITHUB_TOKEN"
headers = { X-Team = "env:TEAM", X-Plain = "plain" }
allowed_tools = ["search"]

[[mcp]]
label = "notes"
command = "notes-server"
args = ["--folder", "/srv/notes"]
env = { NOTES_KEY = "env:TEAM" }
require_approval = "always"
description = "What we wrote down."
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def _load_config(folder: Path, text: str, **flags: object) -> Config:
    (folder / "antiphon.toml").write_text(text)
    return load(flags)


def test_servers_from_the_file_and_from_flags_are_indexed_by_label(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("TEAM", "blue")
    servers = _load_config(folder, FILE).tools.mcp_servers
    assert list(servers) == ["github", "notes", "wiki"]
    assert servers["github"].authorization == "hush"
    assert servers["github"].headers == {"X-Team": "blue", "X-Plain": "plain"}
    assert servers["notes"].env == {"NOTES_KEY": "blue"}
    assert servers["wiki"] == McpServerSpec(label="wiki", url="https://wiki.example/mcp")
    assert "hush" not in repr(servers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[mcp]]\nurl = "http://a"', "[[mcp]] in antiphon.toml is invalid: Object missing required field `label`"),
        (
            '[[mcp]]\nlabel = "a"\nurl = "http://a"\nurll = "b"',
            "[[mcp]] in antiphon.toml is invalid: Object contains",
        ),
        ('[[mcp]]\nlabel = "a"\nauthorization = "env:NO_SUCH"', "reads a value from NO_SUCH, which is not set"),
    ],
)
def test_an_invalid_table_stops_the_start_with_a_message(folder: Path, text: str, message: str) -> None:
    with pytest.raises(StartupError) as raised:
        _load_config(folder, text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[mcp]]\nlabel = "a"', "The MCP server a needs either a url or a command."),
        ('[[mcp]]\nlabel = "a"\nurl = "http://a"\ncommand = "b"', "The MCP server a needs either a url or a command."),
        ('[[mcp]]\nlabel = "a"\ncommand = "b"\nauthorization = "c"', "The MCP server a is a program"),
        ('mcp_server = ["a=http://a"]\n[[mcp]]\nlabel = "a"\ncommand = "b"', "The MCP server a is configured twice."),
    ],
)
def test_contradictory_server_settings_are_rejected(folder: Path, text: str, message: str) -> None:
    with pytest.raises(StartupError) as raised:
        _ = _load_config(folder, text).tools.mcp_servers
    assert message in str(raised.value)


def test_a_flag_requires_a_label_and_a_url() -> None:
    with pytest.raises(StartupError):
        load({"mcp_server": ("https://wiki.example/mcp",)})


def test_loopback_urls_are_allowed_only_without_api_keys_on_loopback() -> None:
    assert Config().server.allow_loopback_urls
    assert not Config.from_settings(api_key=("k",)).server.allow_loopback_urls
    assert not Config.from_settings(host="0.0.0.0", api_key=("k",)).server.allow_loopback_urls
