"""The startup message: address, models, engines and store of the server, and an example request."""

import logging
from importlib.metadata import version

import click

from antiphon.cli.db import redact_password
from antiphon.config import Config

_log = logging.getLogger(__name__)
_MAX_NAMES = 6
_CONNECT_ADDRESSES = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


class Banner:
    """Prints the startup message once the server accepts connections."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = "disabled" if config.storage.disable_store else redact_password(config.storage.store_location)

    def __call__(self, address: str, models: list[str]) -> None:
        """Write the message to stderr, or a log line if the log format is JSON."""
        if self._config.observability.log_format == "json":
            engines = [spec.url for spec in self._config.inference.specs]
            fields = {"address": address, "models": models, "engines": engines, "store": self._store}
            _log.info("listening", extra=fields)
        else:
            click.echo(self._render(address, models), err=True)

    def _render(self, address: str, models: list[str]) -> str:
        url = address
        for wildcard, loopback in _CONNECT_ADDRESSES.items():
            url = url.replace(wildcard, loopback)
        name = models[0] if models else "NAME"
        key = ' -H "authorization: Bearer $ANTIPHON_API_KEY"' if self._config.server.api_key else ""
        body = f'{{"model": "{name}", "input": "Hello!"}}'
        lines = [
            f"Antiphon {version('antiphon')} serves {_join_names(models) or 'no model yet'} "
            f"with {self._render_engines()}",
            f"  API   {url}/v1",
            f"  docs  {url}/docs",
            f"  store {self._store}",
            f"  try   curl {url}/v1/responses -H 'content-type: application/json'{key} -d '{body}'",
        ]
        if self._config.config:
            lines.append(f"  settings from {self._config.config}")
        return "\n".join([*lines, "Press Ctrl-C to stop."])

    def _render_engines(self) -> str:
        names = _join_names(
            [f"{spec.url} (drained)" if spec.drain else spec.url for spec in self._config.inference.specs]
        )
        return names if self._config.server.workers == 1 else f"{names}, in {self._config.server.workers} processes"


def _join_names(names: list[str]) -> str:
    """Join the first names, to keep the line readable."""
    return ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
