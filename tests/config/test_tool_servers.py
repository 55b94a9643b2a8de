"""Tool servers that the operator configures by flags, by a variable and in the config file."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.sources import load
from antiphon.config.tool_settings import McpServerSpec
from antiphon.errors import StartupError

FILE = """
[[tool_servers]]
label = "python"
url = "http://python-tool:8001/mcp"
authorization = "env:PYTHON_TOKEN"
headers = { X-Team = "blue" }
description = "Runs code on the cluster."
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def test_one_flag_names_several_servers() -> None:
    servers = load({"tool_server": ("python=http://a/x,y,browser=https://b/mcp", "container=http://c")}).tools
    assert {name: spec.url for name, spec in servers.tool_server_specs.items()} == {
        "python": "http://a/x,y",
        "browser": "https://b/mcp",
        "container": "http://c",
    }


def test_a_variable_names_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_TOOL_SERVER", "python=http://a,browser=http://b")
    assert [*load({}).tools.tool_server_specs] == ["python", "browser"]


def test_headers_and_tokens_are_configured_in_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_TOKEN", "hush")
    (folder / "antiphon.toml").write_text(FILE)
    config = load({"tool_server": ("browser=http://b",)})
    spec = config.tools.tool_server_specs["python"]
    assert (spec.authorization, spec.headers) == ("hush", {"X-Team": "blue"})
    assert [*config.tools.tool_server_specs] == ["python", "browser"]
    assert "hush" not in repr(config.tools.tool_server_specs)


@pytest.mark.parametrize(
    ("table", "pairs", "message"),
    [
        ({"label": "shell", "url": "http://a"}, (), "There is no tool server shell: the names are python, browser"),
        ({"label": "python"}, (), "The tool server python needs either a url or a command."),
        ({"label": "python", "url": "http://a"}, ("python=http://b",), "The tool server python is configured twice."),
        ({"label": "python", "url": "http://a", "allowed_tools": ("x",)}, (), "takes neither allowed_tools"),
        ({"label": "python", "url": "http://a", "require_approval": "always"}, (), "nor require_approval"),
    ],
)
def test_contradictory_tool_servers_are_rejected(
    table: dict[str, object], pairs: tuple[str, ...], message: str
) -> None:
    specs = (McpServerSpec(**table),)  # type: ignore[arg-type]  # fields of the case
    config = Config.from_settings(tool_servers=specs, tool_server=pairs)
    with pytest.raises(StartupError, match=message):
        _ = config.tools.tool_server_specs


@pytest.mark.parametrize("value", ["http://a", "python=a", "files=http://a"])
def test_a_flag_without_a_name_or_url_is_rejected(value: str) -> None:
    with pytest.raises(StartupError, match="expected python=URL, browser=URL or container=URL"):
        load({"tool_server": (value,)})
