"""Who watches the server: an access log that can be written, a collector of traces that is there."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.cli.doctor.findings import Finding, fine, warning, wrong
from antiphon.config import Config
from antiphon.config.areas.observability import traces_url
from antiphon.observe.access_log import STDERR

_SECONDS = 3.0
_PORTS = {"http": 80, "https": 443}


async def watchers(config: Config) -> list[Finding]:
    url = traces_url(config.otlp_endpoint, config.otlp_traces_endpoint)
    found = [*_access_log(config.access_log), *([] if url is None else [await _collector(url)])]
    return found or [fine("There is no access log, and nothing is traced.")]


def _access_log(place: str | None) -> Iterator[Finding]:
    if place is None:
        return
    path = Path(place).absolute()
    fits = not path.is_dir() if path.exists() else path.parent.is_dir()
    if place == STDERR or (fits and os.access(path if path.exists() else path.parent, os.W_OK)):
        yield fine("The access log can be written.")
        return
    why = "this user may not" if fits else "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
    yield wrong(f"The access log {place} cannot be written: {why}.", "Mend that, or name another with --access-log.")


async def _collector(url: str) -> Finding:
    """Without it the server serves all the same."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
    except (OSError, TimeoutError):
        mend = "Start it, or correct --otlp-endpoint: until then spans are dropped and counted."
        return warning(f"No collector of traces answers at {where}.", mend)
    with closing(writer):
        return fine(f"Traces go to {where}.")
