"""The command: all checks side by side, each within a deadline; a line for each finding, and 1 if one is wrong.

The checks there are, in the order in which their lines are shown.
"""

import asyncio
import logging
from typing import Any

import click
import msgspec

from antiphon.cli.doctor.engines import embedded_models, engines
from antiphon.cli.doctor.environment import keys, limits, mcp_servers, port, sandbox, watchers
from antiphon.cli.doctor.findings import Check, Finding, Line, Report, cut, wrong
from antiphon.cli.doctor.settings import contradictions, extras, files
from antiphon.cli.doctor.storage import live_log, store
from antiphon.cli.options import SettingsCommand
from antiphon.config import Config
from antiphon.config.help_text import CLIENT
from antiphon.config.sources import Survey, settings, survey
from antiphon.errors import AntiphonError, StartupError

WRONG = 1
SECONDS = 15.0  # for one check
_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}

DOCTOR = """Look at everything that `antiphon serve` would need with these settings, and change nothing.

A line for each thing that was looked at: ok, a warning, or wrong, and what mends it. The exit code is 1 if something is
wrong. It takes the options, the variables and the file of `antiphon serve`.

\b
  antiphon doctor
  antiphon doctor --store postgresql://db/antiphon --engine vllm://gpu-1:8000
  antiphon doctor --json
"""


class DoctorCommand(SettingsCommand):
    """Hands on what is wrong with the settings, where others stop."""

    def take(self, ctx: click.Context, given: dict[str, Any]) -> None:
        ctx.params["found"] = survey(given)


@click.command(
    cls=DoctorCommand, rows=[row for row in settings().values() if row.note.group != CLIENT.title], help=DOCTOR
)
@click.argument("first_model", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def doctor(found: Survey, as_json: bool) -> None:
    from antiphon.cli.doctor.settings import settings_read  # here alone: other commands must not wait for its imports

    logging.getLogger("antiphon").addHandler(logging.NullHandler())  # what it would say stands in the lines below
    lines = [finding.of("configuration") for finding in settings_read(found)]
    if found.config is not None:
        lines += asyncio.run(_examined(found.config))
    report = Report(all(line.level != "wrong" for line in lines), lines)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        for line in lines:
            click.echo(_shown(line))
    if not report.ok:
        raise click.exceptions.Exit(WRONG)


async def _examined(config: Config) -> list[Line]:
    from antiphon.cli.doctor.command import CHECKS

    found = await asyncio.gather(*(_bounded(check, config) for check in CHECKS.values()))
    lines = [finding.of(name) for name, findings in zip(CHECKS, found, strict=True) for finding in findings]
    first = {line.text: line for line in reversed(lines)}  # several checks may stumble over one thing
    return [line for line in lines if line.level == "ok" or first[line.text] is line]


async def _bounded(check: Check, config: Config) -> list[Finding]:
    try:
        async with asyncio.timeout(SECONDS):
            return await check(config)
    except TimeoutError:
        return [wrong(f"This took more than {SECONDS:g} s and was given up.")]
    except (AntiphonError, StartupError, OSError) as error:
        return [wrong(cut(error))]


def _shown(line: Line) -> str:
    level = click.style(f"{line.level:<8}", fg=_COLOURS[line.level])
    mend = f" → {line.mend}" if line.mend else ""
    return f"{level} {line.check:<14} {line.text}{mend}"


CHECKS: dict[str, Check] = {
    "settings": contradictions,
    "files": files,
    "extras": extras,
    "port": port,
    "keys": keys,
    "store": store,
    "live log": live_log,
    "engines": engines,
    "model": embedded_models,
    "mcp": mcp_servers,
    "watching": watchers,
    "limits": limits,
    "sandbox": sandbox,
}
