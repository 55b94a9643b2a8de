"""Plug-ins of other packages, found by their entry points in every registry."""

import sys
from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.core.prompt import ParserChoice
from antiphon.engines.factory import build_member_specs
from antiphon.engines.fake.engine import FakeEngine
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import find_format, load_format
from antiphon.parsers.detection import get_configured_format
from antiphon.plugins import find_plugin, list_names, list_plugins
from antiphon.service.tool_loop.toolkit import built_in_tools
from antiphon.stores.registry import make_store
from antiphon.tools.base import ToolServices
from antiphon.tools.registry import TOOLS
from antiphon.tools.web_search.providers import make_provider
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import make_egress_client
from tests.support.plugins import install_plugin

ENGINE = "from antiphon.engines.fake.engine import FakeEngine\nclass Parrot(FakeEngine): name = 'parrot'\n"
TABLE = {"fake": "antiphon.engines.fake.engine:FakeEngine", "five": 5}


@pytest.fixture(autouse=True)
def forgotten_formats() -> None:
    """Formats are looked up once per process, and other tests may have looked for the same ones."""
    find_format.cache_clear()
    load_format.cache_clear()
    get_configured_format.cache_clear()


def test_the_table_is_looked_up_first_and_unknown_names_are_none() -> None:
    assert find_plugin("engines", "fake", TABLE) is FakeEngine
    assert find_plugin("engines", "five", TABLE) == 5
    assert find_plugin("engines", "six", TABLE) is None
    assert list_names("engines", TABLE) == ["fake", "five"]


@pytest.mark.shows("I4.1")
def test_an_engine_of_another_package_is_selected_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_plugin(monkeypatch, tmp_path, "parrot-engine", {"engines": {"parrot": "parrot_engine:Parrot"}}, ENGINE)
    assert list_plugins("engines") == [("parrot", "parrot-engine 1.0")]
    assert "parrot_engine" not in sys.modules, "a plug-in is imported when it is used"
    (spec,) = build_member_specs(Config.from_settings(engine="parrot"))
    assert spec.build().name == "parrot"
    with pytest.raises(StartupError, match="ovms, parrot, sglang or vllm"):
        build_member_specs(Config.from_settings(engine="macaw"))


def test_a_plug_in_that_cannot_be_imported_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries = {
        "engines": {"missing": "no_such_module:Parrot", "absent": "broken_one:Absent", "five": "broken_one:FIVE"}
    }
    install_plugin(monkeypatch, tmp_path, "broken-one", entries, "FIVE = 5\n")
    for name in ("missing", "absent"):
        with pytest.raises(
            StartupError, match=rf"antiphon.engines '{name}' of broken-one 1.0 cannot be imported: .*no"
        ):
            build_member_specs(Config.from_settings(engine=name))
    with pytest.raises(StartupError, match=r"'five' of broken-one 1.0 is not of the kind Engine \(broken_one:FIVE\)"):
        build_member_specs(Config.from_settings(engine="five"))


def test_one_name_of_two_packages_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("blue-parrot", "red-parrot"):
        target = f"{package.replace('-', '_')}:Parrot"
        install_plugin(monkeypatch, tmp_path / package, package, {"engines": {"parrot": target}}, ENGINE)
    with pytest.raises(StartupError, match=r"blue-parrot 1.0 and red-parrot 1.0 both have .* 'parrot': uninstall one"):
        build_member_specs(Config.from_settings(engine="parrot"))


@pytest.mark.shows("I4.1")
def test_a_store_of_another_package_is_selected_by_the_scheme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "from antiphon.stores.sqlite import SqliteStore\nclass Ledger(SqliteStore): pass\n"
    install_plugin(monkeypatch, tmp_path, "ledger-store", {"stores": {"ledger": "ledger_store:Ledger"}}, source)
    store = make_store("ledger://somewhere", 1.0)
    assert type(store).__name__ == "Ledger"
    with pytest.raises(StartupError, match="ledgers://"):
        make_store("ledgers://somewhere", 1.0)


@pytest.mark.shows("I4.1")
def test_a_tool_call_format_of_another_package_is_selected_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = (
        "from antiphon.parsers.calls.base import CallFrame, JsonFrame\n"
        "from antiphon.parsers.calls.json_calls import JsonCalls\n"
        "PARROT = JsonFrame(openings=('[SAY]',), closings=('[/SAY]',))\n"
        "class OwnFrame(JsonFrame, frozen=True): syntax = 'say_format:OwnCalls'\n"
        "class OwnCalls(JsonCalls): pass\n"
        "OWN, BARE = OwnFrame(openings=('[OWN]',)), CallFrame()\n"
    )
    entries = {"parsers": {"say": "say_format:PARROT", "own": "say_format:OWN", "bare": "say_format:BARE"}}
    install_plugin(monkeypatch, tmp_path, "say-format", entries, source)
    choice = ParserChoice(calls="say", reasoning="none")
    assert get_configured_format(choice).calls == "say"
    assert load_format("say")({}).openings == ("[SAY]",)
    assert type(load_format("own")({})).__name__ == "OwnCalls"
    with pytest.raises(StartupError, match="'bare' has no `syntax`"):
        load_format("bare")
    with pytest.raises(StartupError, match=r"'nay' is not known; .* say, "):
        get_configured_format(ParserChoice(calls="nay"))


@pytest.mark.shows("I4.1")
def test_a_search_provider_of_another_package_is_selected_by_the_scheme(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "def make(settings, url, egress): return url\n"
    install_plugin(monkeypatch, tmp_path, "shelf-search", {"search": {"shelf": "shelf_search:make"}}, source)
    egress = make_egress_client()
    made: object = make_provider(WebSearchSettings(url="shelf+http://host/x"), egress)
    assert made == "http://host/x"
    with pytest.raises(StartupError, match=r"expected json\+https://… or searxng\+https://… or shelf\+https://…"):
        make_provider(WebSearchSettings(url="shelves://host"), egress)


TOOLS_SOURCE = """
from antiphon.tools.web_search.tool import WebSearch
class Search(WebSearch): pass
class Again(WebSearch): pass
class Unknown: kind = "teleport"
"""


def make_tools(*names: str, **settings: object) -> list[type]:
    config = Config.from_settings(tool_plugin=names, **settings)
    return [type(tool) for tool in built_in_tools(ToolServices(config=config, egress=make_egress_client()))]


@pytest.mark.shows("I4.1")
def test_a_tool_of_another_package_replaces_the_one_of_its_kind_if_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries = {"tools": {name.lower(): f"bing_tool:{name}" for name in ("Search", "Again", "Unknown")}}
    install_plugin(monkeypatch, tmp_path, "bing-tool", entries, TOOLS_SOURCE)
    position = [*TOOLS].index("web_search")
    assert make_tools()[position] is WebSearch, "an installed package changes nothing"
    chosen = make_tools("search")
    assert chosen[position].__name__ == "Search"
    assert len(chosen) == len(TOOLS)


@pytest.mark.parametrize(
    ("names", "settings", "expected"),
    [
        (("gone",), {}, "'gone', which no package has; installed plug-ins: again, search, unknown"),
        (("unknown",), {}, "its kind is 'teleport', not one of file_search, web_search"),
        (("search", "again"), {}, "--tool-plugin again: another plug-in has the kind web_search"),
        (("search",), {"tool_server": ("browser=http://h",)}, "Both --tool-server and --tool-plugin run web_search"),
    ],
)
def test_a_tool_plug_in_that_cannot_be_used_is_a_startup_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...], settings: dict[str, object], expected: str
) -> None:
    entries = {"tools": {name.lower(): f"bing_tool:{name}" for name in ("Search", "Again", "Unknown")}}
    install_plugin(monkeypatch, tmp_path, "bing-tool", entries, TOOLS_SOURCE)
    with pytest.raises(StartupError, match=expected):
        make_tools(*names, **settings)
