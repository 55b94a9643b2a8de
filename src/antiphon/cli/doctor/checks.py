"""The checks there are, in the order in which their lines are shown."""

from antiphon.cli.doctor.engines import engines
from antiphon.cli.doctor.findings import Check
from antiphon.cli.doctor.keys import keys
from antiphon.cli.doctor.machine import limits, sandbox
from antiphon.cli.doctor.models import embedded_models
from antiphon.cli.doctor.port import port
from antiphon.cli.doctor.settings import contradictions, extras, files
from antiphon.cli.doctor.state import live_log, store
from antiphon.cli.doctor.tools import mcp_servers
from antiphon.cli.doctor.watchers import watchers

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
