"""Settings of web search, which share one prefix, and the secrecy of the service's key."""

from pathlib import Path

import pytest

from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.errors import StartupError

SECRET = "s3cret-of-the-provider"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def test_web_search_is_off_by_default() -> None:
    assert load({}).web_search == WebSearchSettings()
    assert load({}).web_search.url is None


@pytest.mark.parametrize(
    "text", ['web_search = "searxng://x"', '[web_search]\nurl = "searxng://x"', 'web_search_url = "searxng://x"']
)
def test_the_service_may_be_set_in_one_line_or_in_a_section(folder: Path, text: str) -> None:
    (folder / "antiphon.toml").write_text(text)
    assert load({}).web_search.url == "searxng://x"
    assert load({"web_search_url": "searxng://y"}).web_search.url == "searxng://y"


def test_a_section_sets_every_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text(
        '[web_search]\nurl = "json+https://x/?q={query}"\nkey = "env:SEARCH_KEY"\nkey_header = "X-Key"\n'
        'results = "web.results"\nlink = "href"\ntitle = "name"\nsnippet = "text"\ntimeout = 3\nmax_pages = 7\n'
    )
    monkeypatch.setenv("SEARCH_KEY", SECRET)
    assert load({}).web_search == WebSearchSettings(
        url="json+https://x/?q={query}", key=SECRET, key_header="X-Key", results="web.results", link="href",
        title="name", snippet="text", timeout=3.0, max_pages=7,
    )  # fmt: skip


def test_a_key_from_an_unset_variable_stops_the_start(folder: Path) -> None:
    (folder / "antiphon.toml").write_text('[web_search]\nkey = "env:NO_SUCH_KEY"\n')
    with pytest.raises(StartupError, match="NO_SUCH_KEY, which is not set"):
        load({})


def test_an_invalid_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_WEB_SEARCH_KEY", f"{SECRET} with spaces")
    with pytest.raises(StartupError) as stopped:
        load({})
    assert SECRET not in str(stopped.value)


def test_every_setting_is_documented_under_the_web_search_heading() -> None:
    assert {row.group for row in settings().values() if row.name.startswith("web_search_")} == {"Web search"}
