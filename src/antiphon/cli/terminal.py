"""Output in a terminal: the startup message, tables, and the progress of downloads and loads."""

import logging
import platform
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

import click

from antiphon.config import Config
from antiphon.version import VERSION

_log = logging.getLogger(__name__)
_MANY_STREAMS = 8  # from which OpenVINO is several times as fast as llama.cpp on x86 CPUs
_CONNECT_ADDRESSES = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


def print_banner(config: Config, address: str, models: list[str]) -> None:
    """Write the startup message to stderr, or a log line if the log format is JSON."""
    store = "disabled" if config.storage.disable_store else redact_password(config.storage.store_location)
    if config.observability.log_format == "json":
        engines = [spec.url for spec in config.inference.specs]
        _log.info("listening", extra={"address": address, "models": models, "engines": engines, "store": store})
    else:
        click.echo(_render_banner(config, address, models, store), err=True)


def redact_password(location: str) -> str:
    """Return the location without its password, in the user info or the query, for output."""
    if "://" not in location:
        return location
    parts = urlsplit(location)
    query = "&".join(pair for pair in parts.query.split("&") if "pass" not in pair.partition("=")[0].lower())
    user = f"{parts.username}@" if parts.username else ""
    netloc = user + parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    return parts._replace(netloc=netloc, query=query).geturl()


def _render_banner(config: Config, url: str, models: list[str], store: str) -> str:
    for wildcard, loopback in _CONNECT_ADDRESSES.items():
        url = url.replace(wildcard, loopback)
    engines = join_names([f"{spec.url} (drained)" if spec.drain else spec.url for spec in config.inference.specs])
    processes = "" if config.server.workers == 1 else f", in {config.server.workers} processes"
    key = ' -H "authorization: Bearer $ANTIPHON_API_KEY"' if config.server.api_key else ""
    body = f'{{"model": "{models[0] if models else "NAME"}", "input": "Hello!"}}'
    lines = [
        f"Antiphon {VERSION} serves {join_names(models) or 'no model yet'} with {engines}{processes}",
        f"  API   {url}/v1",
        f"  docs  {url}/docs",
        f"  store {store}",
        f"  try   curl {url}/v1/responses -H 'content-type: application/json'{key} -d '{body}'",
    ]
    if config.config:
        lines.append(f"  settings from {config.config}")
    if suggest_openvino(config, platform.machine()):
        install = "" if find_spec("openvino_genai") else ", after pip install 'antiphon[openvino]'"
        lines.append(f"  hint  as many streams are faster on this CPU with --engine openvino{install}")
    return "\n".join([*lines, "Press Ctrl-C to stop."])


def suggest_openvino(config: Config, machine: str) -> bool:
    """Return whether OpenVINO would serve better: llama.cpp has many slots on an x86 CPU, and no GPU is configured."""
    slots = [spec.slots or config.embedded.slots or 0 for spec in config.inference.specs if spec.kind == "llamacpp"]
    return machine in ("x86_64", "AMD64") and not config.embedded.gpu_layers and max(slots, default=0) >= _MANY_STREAMS


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of the same length with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def join_names(names: list[str], limit: int = 6) -> str:
    """Join the first names, to keep the line readable."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


BAR_WIDTH = 30
REDRAW_SECONDS = 0.1
LINE_SECONDS = 5.0


class ProgressBar:
    """Call it with the done and total amount of a task, from any thread; it limits how often it prints."""

    def __init__(self) -> None:
        self._task = ""
        self._finished = True
        self._next = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        finished, now, interactive = done >= total, time.monotonic(), sys.stderr.isatty()
        if task != self._task:
            self._task, self._finished = task, False
            self._next = now if interactive else now + LINE_SECONDS
        if self._finished or (now < self._next and not finished):
            return
        self._finished = finished
        if interactive:
            self._next = now + REDRAW_SECONDS
            sys.stderr.write(f"\r{task} {_render_bar(done, total)}\x1b[K" + ("\n" if finished else ""))
        else:
            self._next = now + LINE_SECONDS
            sys.stderr.write(f"{task}: {_render_percentage(done, total)}\n")
        sys.stderr.flush()


def _render_percentage(done: int, total: int) -> str:
    """Render the progress; a task of one step has no percentage."""
    if total <= 1:
        return "done" if done >= total else "…"
    return f"{100 * done // total} %"


def _render_bar(done: int, total: int) -> str:
    if total <= 1:
        return _render_percentage(done, total)
    filled = BAR_WIDTH * min(done, total) // total
    return f"[{'█' * filled}{'·' * (BAR_WIDTH - filled)}] {_render_percentage(done, total)}"
