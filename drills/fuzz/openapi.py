"""Runs schemathesis on the server's own OpenAPI document: requests that it allows, and requests that it forbids."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from drills.harness.findings import Figure, Findings

_TIMEOUT_SECONDS = 3600.0
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


async def run_schemathesis(port: int, examples: int, findings: Findings, path: str | None = None) -> None:
    """Run schemathesis. `path`: test only this path."""
    with tempfile.TemporaryDirectory(prefix="antiphon-fuzz-") as folder:
        settings, report = Path(folder) / "schemathesis.toml", Path(folder) / "report.json"
        settings.write_text(_SETTINGS.format(seed=_SEED, examples=examples, report=report))
        filters = [] if path is None else ["--include-path", path]
        output = await _run_process(settings, [*filters, f"http://127.0.0.1:{port}/openapi.json"])
        if not report.exists():
            findings.add_violation(f"schemathesis did not finish:\n{output[-3000:]}")
            return
        _check_report(json.loads(report.read_bytes()), output, findings)


async def _run_process(settings: Path, arguments: list[str]) -> str:
    program = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(settings),
        "run",
        "--no-color",
        *arguments,
    ]
    process = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "COLUMNS": "120"}
    )
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")


def _check_report(report: dict[str, Any], output: str, findings: Findings) -> None:
    findings.add_trials(report["test_cases"]["generated"])
    tested, selected = report["operations"]["tested"], report["operations"]["selected"]
    findings.add_figure(Figure("operations", tested, minimum=selected))
    for group in (*report["failures"], *report["errors"]):
        findings.add_violation(
            f"schemathesis: {group['title']} ({group['count']}): {', '.join(group.get('operations', ()))}"
        )
    if report["failures"] or report["errors"]:
        findings.print_line(output)
    elif report["exit_code"] or tested < selected or report["stop_reason"] != "completed":
        findings.add_violation(
            f"schemathesis ended with {report['exit_code']} ({report['stop_reason']}):\n{output[-3000:]}"
        )
