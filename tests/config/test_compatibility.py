"""Settings for clients and scripts of other servers: alternative names of flags and of their values."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.cli.options import SettingsCommand
from antiphon.config import Config
from antiphon.config.areas import ALTERNATIVE_NAMES
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.errors import StartupError

VALUES: dict[str, tuple[str, Any]] = {
    "keep_streams": ("600", 600.0),
    "max_active_sessions": ("20", 20),
    "store_ttl": ("60", 60.0),
    "store_max_entries": ("5", 5),
    "store_max_bytes": ("500", 500),
    "ping_interval": ("0", 0.0),
    "default_service_tier": ("flex", "flex"),
    "allowed_service_tiers": ("auto,default", ("auto", "default")),
    "compat": ("false", "off"),
    "reasoning_key": ("@keys", ("@keys",)),
    "tool_output_timeout": ("5", 5.0),
    "max_tool_output_bytes": ("9", 9),
    "web_search_url": ("searxng+https://search.example", "searxng+https://search.example"),
    "shed_memory": ("7", 7),
}


def parse_flags(*flags: str) -> Config:
    """Return the configuration that `serve` gets from these flags."""
    found: list[Config] = []
    command = SettingsCommand("serve", callback=lambda config: found.append(config), rows=settings().values())
    result = CliRunner().invoke(command, [*flags], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.shows("H1.8")
@pytest.mark.parametrize("name", VALUES)
def test_a_flag_works_under_its_alternative_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = VALUES[name]
    other = ALTERNATIVE_NAMES[name]
    assert parse_flags("--" + other.replace("_", "-"), text).get(name) == value
    assert parse_flags("--" + name.replace("_", "-"), text).get(name) == value
    monkeypatch.setenv("ANTIPHON_" + other.upper(), text)
    assert load({}).get(name) == value


@pytest.mark.shows("H1.8")
def test_a_switch_works_under_its_alternative_name() -> None:
    assert parse_flags("--disable-responses-store").storage.disable_store
    assert VALUES.keys() | {"disable_store", "reasoning_events"} == ALTERNATIVE_NAMES.keys()


@pytest.mark.shows("H1.3", "H1.6", "H1.7")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ("on", "off", "openai")),
        (("--compat=off", "--legacy-events", "--reasoning-events=legacy"), ("off", "on", "legacy")),
        (("--compat", "off", "--legacy-events=strings"), ("off", "strings", "openai")),
        (("--responses-compatibility-mode=false", "--legacy-events=false"), ("off", "off", "openai")),
        (("--responses-compatibility-mode=True", "--legacy-reasoning-events"), ("on", "off", "openai")),
    ],
)
def test_a_flag_needs_no_value_and_accepts_true_and_false_for_on_and_off(
    flags: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    config = parse_flags(*flags)
    assert (
        config.compatibility.compat,
        config.compatibility.legacy_events,
        config.compatibility.reasoning_events,
    ) == expected


def test_a_config_file_may_use_booleans_for_on_and_off(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('responses_compatibility_mode = false\nlegacy_events = true\nallowed_service_tiers = ["flex"]')
    config = load({"config": str(file)})
    assert (
        config.compatibility.compat,
        config.compatibility.legacy_events,
        config.compatibility.allowed_service_tiers,
    ) == ("off", "on", ("flex",))
    file.write_text("legacy_events = 3")
    with pytest.raises(StartupError, match="legacy_events"):
        load({"config": str(file)})


def test_unknown_service_tiers_are_rejected() -> None:
    with pytest.raises(StartupError, match="--default-service-tier"):
        load({"default_service_tier": "gold"})
    with pytest.raises(StartupError, match="--allowed-service-tiers"):
        load({"allowed_service_tiers": ("flex,gold",)})
    assert load({"default_service_tier": "auto"}).compatibility.default_service_tier == "default"
