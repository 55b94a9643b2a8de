"""MCP servers that the operator names, by flags and in the file."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.mcp import McpServerSpec
from antiphon.config.sources import load
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


def _loaded(folder: Path, text: str, **flags: object) -> Config:
    (folder / "antiphon.toml").write_text(text)
    return load(flags)


def test_servers_of_the_file_and_of_flags_are_known_by_their_labels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("TEAM", "blue")
    servers = _loaded(folder, FILE).mcp_servers
    assert list(servers) == ["github", "notes", "wiki"]
    assert servers["github"].authorization == "hush"
    assert servers["github"].headers == {"X-Team": "blue", "X-Plain": "plain"}
    assert servers["notes"].env == {"NOTES_KEY": "blue"}
    assert servers["wiki"] == McpServerSpec(label="wiki", url="https://wiki.example/mcp")
    assert "hush" not in repr(servers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[mcp]]\nurl = "http://a"', "[[mcp]] in antiphon.toml does not fit: Object missing required field `label`"),
        (
            '[[mcp]]\nlabel = "a"\nurl = "http://a"\nurll = "b"',
            "[[mcp]] in antiphon.toml does not fit: Object contains",
        ),
        ('[[mcp]]\nlabel = "a"\nauthorization = "env:NO_SUCH"', "takes something from NO_SUCH, which is not set"),
    ],
)
def test_what_does_not_fit_stops_the_start_with_a_sentence(folder: Path, text: str, words: str) -> None:
    with pytest.raises(StartupError) as raised:
        _loaded(folder, text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[mcp]]\nlabel = "a"', "The MCP server a needs either a url or a command."),
        ('[[mcp]]\nlabel = "a"\nurl = "http://a"\ncommand = "b"', "The MCP server a needs either a url or a command."),
        ('[[mcp]]\nlabel = "a"\ncommand = "b"\nauthorization = "c"', "The MCP server a is a program"),
        ('mcp_server = ["a=http://a"]\n[[mcp]]\nlabel = "a"\ncommand = "b"', "The MCP server a is given twice."),
    ],
)
def test_servers_that_make_no_sense_are_refused(folder: Path, text: str, words: str) -> None:
    with pytest.raises(StartupError) as raised:
        _ = _loaded(folder, text).mcp_servers
    assert words in str(raised.value)


def test_a_flag_has_to_name_a_label_and_a_url() -> None:
    with pytest.raises(StartupError):
        load({"mcp_server": ("https://wiki.example/mcp",)})


def test_loopback_may_be_named_only_on_ones_own_machine() -> None:
    assert Config().at_home
    assert not Config(api_key=("k",)).at_home
    assert not Config(host="0.0.0.0", api_key=("k",)).at_home
