"""The command: runs all checks concurrently, each with a timeout, and prints one line per finding."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from antiphon.cli.doctor.findings import Check, Finding, shorten, wrong
from antiphon.cli.options import SettingsCommand
from antiphon.config import Config
from antiphon.config.settings import CLIENT, settings
from antiphon.config.sources import SettingsSurvey, survey
from antiphon.errors import AntiphonError, StartupError

EXIT_WRONG = 1
CHECK_SECONDS = 15.0  # timeout of one check
_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}

DOCTOR = """Check what `antiphon serve` needs with these settings. Nothing is changed.

Prints one line per finding: ok, warning or wrong, with a suggested remedy. The exit code is 1 if something is wrong.
Options, environment variables and the TOML file are those of `antiphon serve`.

\b
  antiphon doctor
  antiphon doctor --store postgresql://db/antiphon --engine vllm://gpu-1:8000
  antiphon doctor --json
"""


class DoctorCommand(SettingsCommand):
    """Passes the problems of the settings on to the command instead of stopping at the first one."""

    def set_params(self, ctx: click.Context, values: dict[str, Any]) -> None:
        ctx.params["found"] = survey(values)


@click.command(cls=DoctorCommand, rows=[row for row in settings().values() if row.group != CLIENT], help=DOCTOR)
@click.argument("first_model", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def doctor(found: SettingsSurvey, as_json: bool) -> None:
    from antiphon.cli.doctor.settings import check_sources  # imported on demand, see _load_checks

    logging.getLogger("antiphon").addHandler(logging.NullHandler())  # the findings report what would be logged
    findings = [replace(finding, check="configuration") for finding in check_sources(found)]
    if found.config is not None:
        findings += _check_config(found.config)
    is_ok = all(finding.level != "wrong" for finding in findings)  # warnings are allowed
    report = msgspec.json.encode({"ok": is_ok, "findings": findings}).decode()
    click.echo(report if as_json else "\n".join(map(_render, findings)))
    if not is_ok:
        raise click.exceptions.Exit(EXIT_WRONG)


def _check_config(config: Config) -> list[Finding]:
    """Run all checks, unless an engine that is named by its web address cannot be identified."""
    from antiphon.engines.discovery import identify_engines  # imported on demand, see _load_checks

    try:
        identified = identify_engines(config)
    except StartupError as error:
        return [replace(wrong(str(error)), check="engines")]
    return asyncio.run(_run_checks(identified))


async def _run_checks(config: Config) -> list[Finding]:
    results = await asyncio.gather(*(_run_check(name, check, config) for name, check in _load_checks().items()))
    findings = [finding for result in results for finding in result]
    # several checks may report the same problem: only the first finding is shown
    first = {finding.text: finding for finding in reversed(findings)}
    return [finding for finding in findings if finding.level == "ok" or first[finding.text] is finding]


async def _run_check(name: str, check: Check, config: Config) -> list[Finding]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            found = check(config)
            if isinstance(found, AsyncIterator):
                findings = [finding async for finding in found]
            else:
                findings = await asyncio.to_thread(list[Finding], found)
    except TimeoutError:
        findings = [wrong(f"The check was aborted after {CHECK_SECONDS:g} s.")]
    except (AntiphonError, StartupError, OSError) as error:
        findings = [wrong(shorten(error))]
    return [replace(finding, check=name) for finding in findings]


def _render(finding: Finding) -> str:
    level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    remedy = f" → {finding.mend}" if finding.mend else ""
    return f"{level} {finding.check:<14} {finding.text}{remedy}"


def _load_checks() -> dict[str, Check]:
    """Return the checks, in the order of their lines. They import most of the server: other commands must not wait."""
    from antiphon.cli.doctor import engines, environment, plugins, storage, vector_stores
    from antiphon.cli.doctor import settings as settings_checks

    return {
        "settings": settings_checks.check_consistency,
        "files": settings_checks.check_files,
        "extras": settings_checks.check_extras,
        "plug-ins": plugins.check_plugins,
        "port": environment.check_port,
        "keys": settings_checks.check_keys,
        "store": storage.check_store,
        "live log": storage.check_live_log,
        "engines": engines.check_engines,
        "model": engines.check_embedded_models,
        "vector stores": vector_stores.check_vector_models,
        "mcp": environment.check_mcp_servers,
        "tool servers": environment.check_tool_servers,
        "watching": environment.check_observability,
        "limits": environment.check_open_files,
        "sandbox": environment.check_sandbox,
    }
