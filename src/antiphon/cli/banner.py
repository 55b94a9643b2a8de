"""What a person sees when the server is up: where it is, what it serves and keeps, and a line to try."""

import logging
from importlib.metadata import version

import click

from antiphon.cli.db import shown
from antiphon.config import Config

_log = logging.getLogger(__name__)
_SHOWN = 6
_REACHABLE = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


class Banner:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._place = "nothing is kept" if config.disable_store else shown(config.store_place)

    def __call__(self, address: str, models: list[str]) -> None:
        """For people on stderr; where lines are read by machines, it is one of those."""
        if self._config.log_format == "json":
            engines = [spec.url for spec in self._config.specs]
            told = {"address": address, "models": models, "engines": engines, "store": self._place}
            _log.info("listening", extra=told)
        else:
            click.echo(self._text(address, models), err=True)

    def _text(self, address: str, models: list[str]) -> str:
        url = address
        for everywhere, here in _REACHABLE.items():
            url = url.replace(everywhere, here)
        name = models[0] if models else "NAME"
        key = ' -H "authorization: Bearer $ANTIPHON_API_KEY"' if self._config.api_key else ""
        body = f'{{"model": "{name}", "input": "Hello!"}}'
        lines = [
            f"Antiphon {version('antiphon')} serves {_listed(models) or 'no model yet'} with {self._engines()}",
            f"  API   {url}/v1",
            f"  docs  {url}/docs",
            f"  store {self._place}",
            f"  try   curl {url}/v1/responses -H 'content-type: application/json'{key} -d '{body}'",
        ]
        if self._config.config:
            lines.append(f"  settings from {self._config.config}")
        return "\n".join([*lines, "Ctrl-C stops it."])

    def _engines(self) -> str:
        names = _listed([f"{spec.url} (drained)" if spec.drain else spec.url for spec in self._config.specs])
        return names if self._config.workers == 1 else f"{names}, in {self._config.workers} processes"


def _listed(names: list[str]) -> str:
    """The first few: a line is for reading."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
