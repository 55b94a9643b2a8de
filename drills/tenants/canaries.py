"""Where do secrets of clients and operators get to? Into no log, no access log, no metric and no trace.

They are in keys, headers, cookies, URLs, prompts, answers, arguments, outputs and errors, over every API and transport.
"""

import logging
import tempfile
from pathlib import Path

from drills.harness.findings import Figure, Findings
from tests.support.canaries import flown


async def canaries(rounds: int, found: Findings) -> None:
    secrets = size = leaks = 0
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            flight = await flown(Path(folder))
        found.tried()
        leaked = flight.found()
        found.all_violated(f"a secret is in the {place}" for place, _ in leaked)
        secrets += len(flight.secrets)
        leaks += len(leaked)
        size += sum(map(len, flight.written.values()))
    found.figure(Figure("secrets", secrets))
    found.figure(Figure("found", leaks, most=0))
    found.figure(Figure("MB looked through", size / 1e6))
