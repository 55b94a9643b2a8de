"""The help texts: examples, the common settings, and all settings and the limits on pages of their own.

Covers `cli/options.py` and `config/settings.py`.
"""

import os
import subprocess

import pytest
from click.testing import CliRunner

from antiphon.cli.commands import cli
from antiphon.cli.options import COMMON_SETTINGS
from antiphon.config.settings import CLIENT, LIMITS, settings
from tests.cli.process import COMMAND


def get_output(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, prog_name="antiphon", catch_exceptions=False).output


def list_flags(shown: str) -> list[str]:
    """List the flags of the settings that a help text shows."""
    return [row.flag for row in settings().values() if f"  {row.flag} " in shown]


def test_the_help_of_serve_has_exactly_the_common_settings() -> None:
    shown = get_output("serve", "--help")
    assert list_flags(shown) == [row.flag for row in settings().values() if row.name in COMMON_SETTINGS]
    assert len(list_flags(shown)) == len(COMMON_SETTINGS)
    for text in ("antiphon serve --engine fake", "curl", "ANTIPHON_LOG_LEVEL", "antiphon.toml", "--help-limits"):
        assert text in shown, text
    assert "`antiphon serve --help-all` shows all" in shown


def test_help_all_lists_every_setting_of_a_server() -> None:
    shown = get_output("serve", "--help-all")
    assert list_flags(shown) == [row.flag for row in settings().values() if row.group != CLIENT]


@pytest.mark.shows("H6.1")
def test_help_limits_lists_exactly_the_limits() -> None:
    shown = get_output("serve", "--help-limits")
    limits = [row.flag for row in settings().values() if row.group == LIMITS]
    assert list_flags(shown) == limits


@pytest.mark.parametrize(
    "command",
    [
        *("serve", "chat", "models", "pull", "ps", "rm", "db", "keys", "bench"),
        *("sandbox-packages", "sandbox-worker", "version"),
    ],
)
def test_every_command_has_help_and_is_listed_in_the_main_help(command: str) -> None:
    assert f"  {command} " in get_output("--help")
    assert f"Usage: antiphon {command}" in get_output(command, "-h")


@pytest.mark.parametrize("group", [(), ("db",), ("keys",)])
def test_no_summary_of_a_command_is_cut_off(group: tuple[str, ...]) -> None:
    assert "...\n" not in get_output(*group, "--help").partition("Commands:")[2]


def test_an_output_with_few_characters_gets_the_others_escaped() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "cp437"}  # as pipes on some Windows systems
    ran = subprocess.run([*COMMAND, "chat", "--help"], env=environment, capture_output=True, timeout=60, check=False)
    assert (ran.returncode, b"medium, high \\u2026" in ran.stdout) == (0, True), ran.stderr


@pytest.mark.parametrize("command", ["status", "migrate"])
def test_the_db_commands_have_help(command: str) -> None:
    assert f"  {command} " in get_output("db", "--help")
    assert "  --store " in get_output("db", command, "--help")


@pytest.mark.parametrize("command", ["version", "--version"])
def test_the_version_is_printed(command: str) -> None:
    assert get_output(command).startswith("antiphon 0.")


def test_an_unknown_option_suggests_the_likely_one() -> None:
    ran = CliRunner().invoke(cli, ["serve", "--prot", "1"])
    assert ran.exit_code == 2
    assert "--port" in ran.output
