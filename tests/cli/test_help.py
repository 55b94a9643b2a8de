"""The help teaches: examples first, every setting under its heading, limits on a page of their own."""

import pytest
from click.testing import CliRunner

from antiphon.cli.commands import cli
from antiphon.config.help_text import CLIENT, LIMITS
from antiphon.config.sources import settings


def shown_by(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, prog_name="antiphon", catch_exceptions=False).output


def test_the_help_of_serve_has_every_setting_of_a_server_but_no_limits() -> None:
    shown = shown_by("serve", "--help")
    for row in settings().values():
        expected = row.note.group not in (CLIENT.title, LIMITS.title)
        assert (f"  {row.flag} " in shown) is expected, row.flag
    for word in ("antiphon serve --engine fake", "curl", "ANTIPHON_LOG_LEVEL", "antiphon.toml", "--help-limits"):
        assert word in shown, word


@pytest.mark.shows("H6.1")
def test_the_limits_have_a_help_of_their_own() -> None:
    shown = shown_by("serve", "--help-limits")
    limits = [row.flag for row in settings().values() if row.note.group == LIMITS.title]
    assert [row.flag for row in settings().values() if f"  {row.flag} " in shown] == limits


@pytest.mark.parametrize("command", ["serve", "chat", "models", "pull", "db", "keys", "bench", "version"])
def test_every_command_has_a_help_and_stands_in_the_first_one(command: str) -> None:
    assert f"  {command} " in shown_by("--help")
    assert f"Usage: antiphon {command}" in shown_by(command, "-h")


@pytest.mark.parametrize("command", ["status", "migrate"])
def test_the_commands_of_db_have_a_help_too(command: str) -> None:
    assert f"  {command} " in shown_by("db", "--help")
    assert "  --store " in shown_by("db", command, "--help")


@pytest.mark.parametrize("command", ["version", "--version"])
def test_the_version_is_printed(command: str) -> None:
    assert shown_by(command).startswith("antiphon 0.")


def test_an_unknown_option_is_met_with_the_likely_one() -> None:
    ran = CliRunner().invoke(cli, ["serve", "--prot", "1"])
    assert ran.exit_code == 2
    assert "--port" in ran.output
