"""Headers of every reply, whatever its route and status: OpenAI's, Azure's, and the load if it is requested.

A request's own `openai-organization` and `openai-version` are returned if they are well formed, else the operator's
defaults. `endpoint-load-metrics` is the ORCA header that load balancers read; it is sent to clients that send
`endpoint-load-metrics-format`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from antiphon.config.areas import CompatibilitySettings
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request

ReadLoads = Callable[[], Mapping[str, float]]

_ORGANIZATION: Final = b"openai-organization"
_VERSION: Final = b"openai-version"
_FORMAT: Final = b"endpoint-load-metrics-format"
_METRICS: Final = b"endpoint-load-metrics"
_SUPPORTED: Final = (b"api-supported-versions", b"v1")
_VALUE_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_MAX_VALUE_BYTES = 128


class StandardHeaders:
    """Adds the headers that are configured or requested."""

    def __init__(self, settings: CompatibilitySettings, loads: ReadLoads) -> None:
        """`loads`: returns the current load, by the names that are reported."""
        self._loads = loads
        defaults = {_ORGANIZATION: settings.default_openai_organization, _VERSION: settings.default_openai_version}
        self._defaults = {name: value.encode() for name, value in defaults.items() if value is not None}
        self._default_headers = [*self._defaults.items()]
        self._region = (b"x-ms-region", settings.azure_region.encode()) if settings.azure_headers else None

    def add_headers(self, request: Request) -> None:
        """Add the headers to the reply, before any other processing, so that error responses have them, too."""
        headers, reply = request.headers, request.reply_headers
        if _ORGANIZATION in headers or _VERSION in headers:
            reply += self._echo_headers(headers)
        elif self._default_headers:
            reply += self._default_headers
        if self._region is not None:
            reply += [self._region, (b"x-ms-request-id", request.id.encode()), _SUPPORTED]
        if _FORMAT in headers:
            reply += self._load_headers(headers[_FORMAT])

    def _echo_headers(self, headers: Mapping[bytes, bytes]) -> Iterator[Header]:
        for name in (_ORGANIZATION, _VERSION):
            default = self._defaults.get(name)
            value = _choose_value(headers[name], default) if name in headers else default
            if value is not None:
                yield name, value

    def _load_headers(self, format_name: bytes) -> list[Header]:
        """Render the load; nothing in an unknown format."""
        loads = self._loads()
        match format_name.lower():
            case b"text":
                metrics = ", ".join(f"named_metrics.{name}={value:g}" for name, value in loads.items())
                return [(_METRICS, f"TEXT {metrics}".encode())]
            case b"json":
                return [(_METRICS, b"JSON " + msgspec.json.encode({"named_metrics": loads}))]
        return []


def _choose_value(value: bytes, default: bytes | None) -> bytes | None:
    return value if 0 < len(value) <= _MAX_VALUE_BYTES and not value.translate(None, _VALUE_BYTES) else default
