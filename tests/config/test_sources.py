"""One setting, one name, three places: which place wins, and what is said about values that do not fit."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.docs_page import page
from antiphon.config.sources import load, settings
from antiphon.errors import StartupError
from antiphon.limits import Limits
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without settings in or around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def test_with_nothing_given_every_setting_has_its_default() -> None:
    assert load({}) == Config()


@pytest.mark.shows("H.17")
def test_a_flag_beats_the_environment_which_beats_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("port = 1\nqueue = 1\nslots = 1\n")
    monkeypatch.setenv("ANTIPHON_PORT", "2")
    monkeypatch.setenv("ANTIPHON_QUEUE", "2")
    config = load({"port": "3"})
    assert (config.port, config.queue, config.slots) == (3, 2, 1)


def test_a_list_of_a_higher_place_replaces_the_lower_one_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text('api_key = ["a", "b"]\n')
    assert load({}).api_key == ("a", "b")
    monkeypatch.setenv("ANTIPHON_API_KEY", "c, d")
    assert load({}).api_key == ("c", "d")
    assert load({"api_key": ("e",)}).api_key == ("e",)


@pytest.mark.parametrize("text", ["fake_rate = 5", "fake.rate = 5", "[fake]\nrate = 5.0"])
def test_a_section_is_a_prefix(folder: Path, text: str) -> None:
    (folder / "antiphon.toml").write_text(text)
    assert load({}).fake_rate == 5.0


def test_limits_are_settings_with_a_prefix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("[limit]\nbody_bytes = 10\nitems = 20\n")
    monkeypatch.setenv("ANTIPHON_LIMIT_TOOLS", "30")
    assert load({"limit_items": "40"}).limits == Limits(body_bytes=10, items=40, tools=30)


@pytest.mark.shows("H1.2", "H1.8")
def test_the_bound_of_a_tools_output_goes_by_other_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPONSES_MAX_TOOL_OUTPUT_BYTES", "1000")
    monkeypatch.setenv("ANTIPHON_RESPONSES_TOOL_TIMEOUT", "5")
    assert (load({}).max_tool_output_bytes, load({}).tool_output_timeout) == (1000, 5.0)
    monkeypatch.setenv("ANTIPHON_MAX_TOOL_OUTPUT_BYTES", "2000")
    assert load({}).max_tool_output_bytes == 2000
    assert load({"max_tool_output_bytes": "3000"}).max_tool_output_bytes == 3000
    monkeypatch.delenv("ANTIPHON_MAX_TOOL_OUTPUT_BYTES")
    monkeypatch.setenv("RESPONSES_MAX_TOOL_OUTPUT_BYTES", "much")
    with pytest.raises(StartupError, match="RESPONSES_MAX_TOOL_OUTPUT_BYTES"):
        load({})


@pytest.mark.shows("H1.1")
def test_what_is_kept_is_a_matter_of_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("[store]\nttl = 60\nmax_entries = 5\n")
    monkeypatch.setenv("ANTIPHON_STORE_MAX_BYTES", "1000")
    monkeypatch.setenv("ANTIPHON_KEEP_STREAMS", "600")
    config = load({"max_active_sessions": "7", "disable_store": True})
    assert (config.store_ttl, config.store_max_entries, config.store_max_bytes) == (60.0, 5, 1000)
    assert (config.keep_streams, config.max_active_sessions, config.disable_store) == (600.0, 7, True)
    assert (Config().store_ttl, Config().keep_streams, Config().disable_store) == (30 * 86_400, 0, False)
    with pytest.raises(StartupError, match="--keep-streams is '-1'"):
        load({"keep_streams": "-1"})


def test_one_text_will_do_where_a_list_may_stand(folder: Path) -> None:
    (folder / "antiphon.toml").write_text('model = "a.gguf"')
    assert load({}).model == ("a.gguf",)


def test_the_file_is_the_named_one_else_the_folders_else_the_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "xdg" / "antiphon").mkdir(parents=True)
    (folder / "xdg" / "antiphon" / "config.toml").write_text("port = 1")
    assert load({}).port == 1
    (folder / "antiphon.toml").write_text("port = 2")
    assert load({}).port == 2
    (folder / "mine.toml").write_text("port = 3")
    assert load({"config": "mine.toml"}).port == 3
    monkeypatch.setenv("ANTIPHON_CONFIG", "mine.toml")
    assert (load({}).port, load({}).config) == (3, Path("mine.toml"))


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "")
    monkeypatch.setenv("ANTIPHON_API_KEY", "")
    assert load({}) == Config()


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "ANTIPHON_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_SERVICE_PORT_HTTP": "8000",
        "ANTIPHON_PORT": "tcp://10.0.0.1:8000",
        "ANTIPHON_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    assert load({}) == Config()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("port", "abc", "--port is 'abc'; expected a whole number from 0 to 65535."),
        ("port", "65536", "--port is '65536'; expected a whole number from 0 to 65535."),
        ("slots", "0", "--slots is '0'; expected a whole number of at least 1."),
        ("slots", "1.5", "--slots is '1.5'; expected a whole number of at least 1."),
        ("idle_timeout", "inf", "--idle-timeout is 'inf'; expected a number above 0."),
        ("idle_timeout", "nan", "--idle-timeout is 'nan'; expected a number above 0."),
        ("log_format", "xml", "--log-format is 'xml'; expected json or text."),
        ("limit_body_bytes", "-1", "--limit-body-bytes is '-1'; expected a whole number of at least 1."),
        ("host", "", "--host is ''; expected text that is not empty."),
    ],
)
def test_a_flag_that_does_not_fit_is_named_with_what_is_expected(name: str, value: str, sentence: str) -> None:
    with pytest.raises(StartupError) as caught:
        load({name: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("ANTIPHON_PORT", "x", "ANTIPHON_PORT is 'x'; expected a whole number from 0 to 65535."),
        ("ANTIPHON_ACCEPT_ANY_MODEL", "perhaps", "ANTIPHON_ACCEPT_ANY_MODEL is 'perhaps'; expected true or false."),
        ("ANTIPHON_PROT", "1", "ANTIPHON_PROT is not a setting; did you mean ANTIPHON_PORT?"),
        ("ANTIPHON_ZZZZ", "1", "ANTIPHON_ZZZZ is not a setting; `antiphon serve --help` lists them."),
        ("ANTIPHON_CONFIG", "no.toml", "ANTIPHON_CONFIG names no.toml, which is not a file."),
    ],
)
def test_a_variable_that_does_not_fit_is_named(
    variable: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartupError) as caught:
        load({})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "prot in antiphon.toml is not a setting; did you mean port?"),
        (
            "[limits]\nbody_bytes = 1",
            "limits_body_bytes in antiphon.toml is not a setting; did you mean limit_body_bytes?",
        ),
        ('config = "x"', "config in antiphon.toml is not a setting; `antiphon serve --help` lists them."),
        ('port = "8000"', "port in antiphon.toml is '8000'; expected a whole number from 0 to 65535."),
        ("port = true", "port in antiphon.toml is True; expected a whole number from 0 to 65535."),
        ("cache_dir = 3", "cache_dir in antiphon.toml is 3; expected a path."),
        ("idle_timeout = inf", "idle_timeout in antiphon.toml is inf; expected a number above 0."),
        ("fake_rate = 1\nfake.rate = 2", "fake_rate is set twice in antiphon.toml."),
        ("port = ", "antiphon.toml is not valid TOML: Invalid value (at end of document)."),
    ],
)
def test_a_line_of_the_file_that_does_not_fit_is_named(folder: Path, text: str, sentence: str) -> None:
    (folder / "antiphon.toml").write_text(text)
    with pytest.raises(StartupError) as caught:
        load({})
    assert str(caught.value) == sentence


def test_a_key_is_never_in_a_message_or_a_repr() -> None:
    assert "hush" not in repr(Config(api_key=("hush",)))
    for keys in (("hush", ""), ("hush", "hüsh"), ("hush hush",), ("hush\n",)):
        with pytest.raises(StartupError) as caught:
            load({"api_key": keys})
        assert str(caught.value) == (
            "--api-key has a value that does not fit; expected ASCII text without spaces, or a list."
        )


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)],
        *[("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
    ],
)
def test_loopback_is_known_by_its_addresses(host: str, alone: bool) -> None:
    assert Config(host=host).on_loopback is alone


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (Config(), "http://127.0.0.1:8000"),
        (Config(host="0.0.0.0", port=9), "http://127.0.0.1:9"),
        (Config(host="::"), "http://[::1]:8000"),
        (Config(url="https://a.example/"), "https://a.example"),
    ],
)
def test_a_client_finds_the_server_of_the_same_settings(config: Config, url: str) -> None:
    assert config.server_url == url


def test_folders_follow_the_xdg_variables_when_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert Config().cache_dir == Path("/var/caches/antiphon")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Config().cache_dir == Path("/home/me/.cache/antiphon")
    assert load({"cache_dir": "~/models"}).cache_dir == Path("/home/me/models")


def test_every_setting_says_what_it_is() -> None:
    assert [row.name for row in settings().values() if not row.note.text.endswith((".", "?"))] == []


def test_the_page_about_the_settings_is_as_the_table_makes_it() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == page(), "run: make docs"
