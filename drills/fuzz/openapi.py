"""Our own OpenAPI document, as schemathesis plays it: requests that it allows, and requests that it forbids."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from drills.harness.findings import Figure, Findings

_SECONDS = 3600.0
_SEED = 2026
_HEADINGS = ("FAILURES", "ERRORS")
_SETTINGS = """
hooks = "drills.fuzz.hooks"
seed = {seed}
workers = 1
request-timeout = 20.0
continue-on-failure = true
warnings = false
[generation]
mode = "all"
allow-x00 = true
max-examples = {examples}
no-shrink = true
database = "none"
[cache]
enabled = false
[phases.stateful]
max-steps = 6
[checks.unsupported_method]
enabled = true
[reports.json]
path = "{report}"
[output.truncation]
enabled = false
"""


async def schemas(port: int, examples: int, findings: Findings, path: str | None = None) -> None:
    """`path`: that one alone."""
    with tempfile.TemporaryDirectory(prefix="antiphon-fuzz-") as folder:
        settings, report = Path(folder) / "schemathesis.toml", Path(folder) / "report.json"
        settings.write_text(_SETTINGS.format(seed=_SEED, examples=examples, report=report))
        only = [] if path is None else ["--include-path", path]
        said = await _played(settings, [*only, f"http://127.0.0.1:{port}/openapi.json"])
        if not report.exists():
            findings.violated(f"schemathesis did not come to its end:\n{said[-3000:]}")
            return
        _judge(json.loads(report.read_bytes()), said, findings)


async def _played(settings: Path, what: list[str]) -> str:
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run", "--no-color", *what]
    playing = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "COLUMNS": "120"}
    )
    try:
        async with asyncio.timeout(_SECONDS):
            said, _ = await playing.communicate()
    finally:
        if playing.returncode is None:
            playing.kill()
            await playing.wait()
    return said.decode(errors="replace")


def _judge(report: dict[str, Any], said: str, findings: Findings) -> None:
    findings.tried(report["test_cases"]["generated"])
    tested, selected = report["operations"]["tested"], report["operations"]["selected"]
    findings.figure(Figure("operations", tested, least=selected))
    for group in (*report["failures"], *report["errors"]):
        findings.violated(
            f"schemathesis: {group['title']} ({group['count']}): {', '.join(group.get('operations', ()))}"
        )
    if report["failures"] or report["errors"]:
        findings.say(said)
    elif report["exit_code"] or tested < selected or report["stop_reason"] != "completed":
        findings.violated(f"schemathesis ended with {report['exit_code']} ({report['stop_reason']}):\n{said[-3000:]}")
