"""Settings from flags, environment variables and the config file: precedence, and reports of invalid values.

Covers `config/areas.py`, `config/base_folders.py` and `config/toml_tables.py`.
"""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.errors import StartupError
from antiphon.limits import Limits
from tests.support.paths import ROOT
from tools.configuration_page import page


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a working directory without any settings in or around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def test_every_setting_has_a_default() -> None:
    assert load({}) == Config()


@pytest.mark.shows("H.17")
def test_a_flag_beats_the_environment_which_beats_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("port = 1\nqueue = 1\nslots = 1\n")
    monkeypatch.setenv("ANTIPHON_PORT", "2")
    monkeypatch.setenv("ANTIPHON_QUEUE", "2")
    config = load({"port": "3"})
    assert (config.server.port, config.server.queue, config.embedded.slots) == (3, 2, 1)


def test_a_list_from_a_higher_source_replaces_the_whole_lower_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "antiphon.toml").write_text('api_key = ["a", "b"]\n')
    assert load({}).server.api_key == ("a", "b")
    monkeypatch.setenv("ANTIPHON_API_KEY", "c, d")
    assert load({}).server.api_key == ("c", "d")
    assert load({"api_key": ("e",)}).server.api_key == ("e",)


@pytest.mark.parametrize("text", ["fake_rate = 5", "fake.rate = 5", "[fake]\nrate = 5.0"])
def test_a_section_name_is_the_prefix_of_its_settings(folder: Path, text: str) -> None:
    (folder / "antiphon.toml").write_text(text)
    assert load({}).embedded.fake_rate == 5.0


def test_limits_are_settings_with_a_prefix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("[limit]\nbody_bytes = 10\nitems = 20\n")
    monkeypatch.setenv("ANTIPHON_LIMIT_TOOLS", "30")
    assert load({"limit_items": "40"}).limits == Limits(body_bytes=10, items=40, tools=30)


@pytest.mark.shows("H1.2", "H1.8")
def test_tool_output_limits_work_under_their_alternative_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPONSES_MAX_TOOL_OUTPUT_BYTES", "1000")
    monkeypatch.setenv("ANTIPHON_RESPONSES_TOOL_TIMEOUT", "5")
    assert (load({}).tools.max_tool_output_bytes, load({}).tools.tool_output_timeout) == (1000, 5.0)
    monkeypatch.setenv("ANTIPHON_MAX_TOOL_OUTPUT_BYTES", "2000")
    assert load({}).tools.max_tool_output_bytes == 2000
    assert load({"max_tool_output_bytes": "3000"}).tools.max_tool_output_bytes == 3000
    monkeypatch.delenv("ANTIPHON_MAX_TOOL_OUTPUT_BYTES")
    monkeypatch.setenv("RESPONSES_MAX_TOOL_OUTPUT_BYTES", "much")
    with pytest.raises(StartupError, match="RESPONSES_MAX_TOOL_OUTPUT_BYTES"):
        load({})


@pytest.mark.shows("H1.1", "B1.7")
def test_retention_is_configurable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "antiphon.toml").write_text("[store]\nttl = 60\nmax_entries = 5\n")
    monkeypatch.setenv("ANTIPHON_STORE_MAX_BYTES", "1000")
    monkeypatch.setenv("ANTIPHON_KEEP_STREAMS", "60")
    config = load({"max_active_sessions": "7", "disable_store": True})
    assert (config.storage.store_ttl, config.storage.store_max_entries, config.storage.store_max_bytes) == (
        60.0,
        5,
        1000,
    )
    assert (config.storage.keep_streams, config.storage.max_active_sessions, config.storage.disable_store) == (
        60.0,
        7,
        True,
    )
    assert (Config().storage.store_ttl, Config().storage.keep_streams, Config().storage.disable_store) == (
        30 * 86_400,
        600,
        False,
    )
    with pytest.raises(StartupError, match="--keep-streams is '-1'"):
        load({"keep_streams": "-1"})


def test_a_list_setting_accepts_a_single_string(folder: Path) -> None:
    (folder / "antiphon.toml").write_text('model = "a.gguf"')
    assert load({}).inference.model == ("a.gguf",)


def test_the_config_file_is_the_named_one_then_the_local_one_then_the_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "xdg" / "antiphon").mkdir(parents=True)
    (folder / "xdg" / "antiphon" / "config.toml").write_text("port = 1")
    assert load({}).server.port == 1
    (folder / "antiphon.toml").write_text("port = 2")
    assert load({}).server.port == 2
    (folder / "mine.toml").write_text("port = 3")
    assert load({"config": "mine.toml"}).server.port == 3
    monkeypatch.setenv("ANTIPHON_CONFIG", "mine.toml")
    assert (load({}).server.port, load({}).config) == (3, Path("mine.toml"))


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "")
    monkeypatch.setenv("ANTIPHON_API_KEY", "")
    assert load({}) == Config()


def test_variables_that_kubernetes_sets_for_a_service_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "ANTIPHON_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_SERVICE_PORT_HTTP": "8000",
        "ANTIPHON_PORT": "tcp://10.0.0.1:8000",
        "ANTIPHON_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    for name, value in variables.items():
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
def test_an_invalid_flag_is_reported_with_its_name_and_the_expected_value(name: str, value: str, sentence: str) -> None:
    with pytest.raises(StartupError) as caught:
        load({name: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("ANTIPHON_PORT", "x", "ANTIPHON_PORT is 'x'; expected a whole number from 0 to 65535."),
        ("ANTIPHON_ACCEPT_ANY_MODEL", "perhaps", "ANTIPHON_ACCEPT_ANY_MODEL is 'perhaps'; expected true or false."),
        ("ANTIPHON_PROT", "1", "ANTIPHON_PROT is not a setting; did you mean ANTIPHON_PORT?"),
        ("ANTIPHON_ZZZZ", "1", "ANTIPHON_ZZZZ is not a setting; `antiphon serve --help-all` lists them."),
        ("ANTIPHON_CONFIG", "no.toml", "ANTIPHON_CONFIG names no.toml, which is not a file."),
    ],
)
def test_an_invalid_variable_is_reported_with_its_name(
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
        ('config = "x"', "config in antiphon.toml is not a setting; `antiphon serve --help-all` lists them."),
        ('port = "8000"', "port in antiphon.toml is '8000'; expected a whole number from 0 to 65535."),
        ("port = true", "port in antiphon.toml is True; expected a whole number from 0 to 65535."),
        ("cache_dir = 3", "cache_dir in antiphon.toml is 3; expected a path."),
        ("idle_timeout = inf", "idle_timeout in antiphon.toml is inf; expected a number above 0."),
        ("fake_rate = 1\nfake.rate = 2", "fake_rate is set twice in antiphon.toml."),
        ("port = ", "antiphon.toml is not valid TOML: Invalid value (at end of document)."),
    ],
)
def test_an_invalid_setting_in_the_file_is_reported_with_its_name(folder: Path, text: str, sentence: str) -> None:
    (folder / "antiphon.toml").write_text(text)
    with pytest.raises(StartupError) as caught:
        load({})
    assert str(caught.value) == sentence


def test_a_key_is_never_in_a_message_or_a_repr() -> None:
    assert "hush" not in repr(Config.from_settings(api_key=("hush",)))
    for keys in (("hush", ""), ("hush", "hüsh"), ("hush hush",), ("hush\n",)):
        with pytest.raises(StartupError) as caught:
            load({"api_key": keys})
        assert str(caught.value) == ("--api-key is invalid; expected ASCII text without spaces, or a list.")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)],
        *[("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
    ],
)
def test_loopback_is_recognised_by_its_addresses(host: str, is_loopback: bool) -> None:
    assert Config.from_settings(host=host).server.on_loopback is is_loopback


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (Config(), "http://127.0.0.1:8000"),
        (Config.from_settings(host="0.0.0.0", port=9), "http://127.0.0.1:9"),
        (Config.from_settings(host="::"), "http://[::1]:8000"),
        (Config.from_settings(url="https://a.example/"), "https://a.example"),
    ],
)
def test_the_server_url_follows_from_host_port_and_url(config: Config, url: str) -> None:
    assert config.server_url == url


def test_folders_follow_the_xdg_variables_when_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert Config().inference.cache_dir == Path("/var/caches/antiphon")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Config().inference.cache_dir == Path("/home/me/.cache/antiphon")
    assert load({"cache_dir": "~/models"}).inference.cache_dir == Path("/home/me/models")


def test_every_setting_has_a_description() -> None:
    assert [row.name for row in settings().values() if not row.text.endswith((".", "?"))] == []


def test_the_configuration_page_matches_the_settings() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == page(), "run: make docs"
