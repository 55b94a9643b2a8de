"""Headers that every answer has, of every route and whatever it says: OpenAI's, Azure's, and the load on request.

A request's own `openai-organization` and `openai-version` come back if they are well formed; else the operator's word.
`endpoint-load-metrics` is ORCA's, as load balancers read it: for who sends `endpoint-load-metrics-format`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from antiphon.config import Config
from antiphon.transport.http.request import Header, Request

Loads = Callable[[], Mapping[str, float]]

_ORGANIZATION: Final = b"openai-organization"
_VERSION: Final = b"openai-version"
_FORMAT: Final = b"endpoint-load-metrics-format"
_METRICS: Final = b"endpoint-load-metrics"
_SUPPORTED: Final = (b"api-supported-versions", b"v1")
_WORD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LONGEST = 128


class StandardHeaders:
    def __init__(self, config: Config, loads: Loads) -> None:
        """`loads`: what there is to do just now, by the names that are told."""
        self._loads = loads
        defaults = {
            _ORGANIZATION: config.default_openai_organization,
            _VERSION: config.default_openai_version,
        }
        self._defaults = {name: value.encode() for name, value in defaults.items() if value is not None}
        self._usual = [*self._defaults.items()]
        self._region = (b"x-ms-region", config.azure_region.encode()) if config.azure_headers else None

    def put(self, request: Request) -> None:
        """Before anything else is done with it, so that refusals have them too."""
        headers, reply = request.headers, request.reply_headers
        if _ORGANIZATION in headers or _VERSION in headers:
            reply += self._given(headers)
        elif self._usual:
            reply += self._usual
        if self._region is not None:
            reply += [self._region, (b"x-ms-request-id", request.id.encode()), _SUPPORTED]
        if _FORMAT in headers:
            reply += self._load(headers[_FORMAT])

    def _given(self, headers: Mapping[bytes, bytes]) -> Iterator[Header]:
        for name in (_ORGANIZATION, _VERSION):
            default = self._defaults.get(name)
            value = _sound(headers[name], default) if name in headers else default
            if value is not None:
                yield name, value

    def _load(self, form: bytes) -> list[Header]:
        """Nothing in a format that nobody knows."""
        loads = self._loads()
        match form.lower():
            case b"text":
                named = ", ".join(f"named_metrics.{name}={value:g}" for name, value in loads.items())
                return [(_METRICS, f"TEXT {named}".encode())]
            case b"json":
                return [(_METRICS, b"JSON " + msgspec.json.encode({"named_metrics": loads}))]
        return []


def _sound(value: bytes, default: bytes | None) -> bytes | None:
    return value if 0 < len(value) <= _LONGEST and not value.translate(None, _WORD) else default
