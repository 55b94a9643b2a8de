"""Secrets of clients and operators must appear in no log, access log, metric or trace.

They are sent in keys, headers, cookies, URLs, prompts, answers, arguments, outputs and errors, over every API and
transport.
"""

import logging
import tempfile
from pathlib import Path

from drills.harness.findings import Figure, Findings
from tests.support.canaries import run_canaries


async def canaries(rounds: int, findings: Findings) -> None:
    secrets = size = leaks = 0
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            flight = await run_canaries(Path(folder))
        findings.add_trials()
        leaked = flight.find_leaks()
        findings.add_violations(f"a secret is in the {source}" for source, _ in leaked)
        secrets += len(flight.secrets)
        leaks += len(leaked)
        size += sum(map(len, flight.outputs.values()))
    findings.add_figure(Figure("secrets", secrets))
    findings.add_figure(Figure("found", leaks, maximum=0))
    findings.add_figure(Figure("MB looked through", size / 1e6))
