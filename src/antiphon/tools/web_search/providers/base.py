"""Interface and HTTP client of the search providers, which find pages for a query. Their responses are untrusted.

The operator chooses the provider, so it may have a private address. Redirects to other hosts are not followed. Error
messages for clients contain neither its address nor its key; the log contains the address, but never the key.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient, FetchLimits, RequestHeaders
from antiphon.errors import FetchFailed, StartupError, UrlRefused

log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_FLAG = "--web-search-url"


class SearchQuery(Struct, frozen=True, kw_only=True):
    """A query for a provider."""

    query: str
    count: int
    language: str = ""  # of the results, such as de-DE; "": any
    country: str = ""  # of the user: two capital letters
    region: str = ""
    city: str = ""
    timezone: str = ""


class SearchResult(Struct, frozen=True):
    """One result of a provider, unchecked."""

    url: str
    title: str = ""
    snippet: str = ""


class SearchProvider(Protocol):
    """A search service."""

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        """Return the results in the provider's order; raises FetchFailed.

        There may be more results than requested, and their content is unchecked.
        """


class SearchClient:
    """Fetches JSON from a provider over HTTP, within limits."""

    def __init__(self, settings: WebSearchSettings, base_url: str, egress: EgressClient) -> None:
        """`base_url`: the URL of the service, whose host the egress client is allowed to reach."""
        self.settings = settings
        try:
            self._egress = egress.allow_operator_url(base_url, "web_search_url")
        except UrlRefused as error:
            raise StartupError(f"{_FLAG} is invalid: {error.message}") from None
        self._headers = _build_headers(settings)
        self._limits = FetchLimits(
            bytes=MAX_RESPONSE_BYTES,
            seconds=settings.timeout,
            first_byte_seconds=settings.timeout,
            redirects=2,
            accept="application/json",
        )

    async def fetch_json(self, url: str, body: bytes | None = None) -> Any:
        request = RequestHeaders(headers=self._headers, body=body)
        try:
            fetched = await self._egress.fetch(url, "web_search", self._limits, request)
        except (FetchFailed, UrlRefused) as error:
            log.warning("Web search failed: %s", error.message)
            raise FetchFailed("The search service of this server does not answer as it should.") from None
        try:
            return msgspec.json.decode(fetched.body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            log.warning("Web search failed: the service configured with %s did not return JSON.", _FLAG)
            raise FetchFailed("The search service of this server does not answer as it should.") from None


def _build_headers(settings: WebSearchSettings) -> tuple[tuple[str, str], ...]:
    name = settings.key_header
    if not name.replace("-", "").replace("_", "").isalnum():
        raise StartupError("--web-search-key-header is not a valid header name.")
    if settings.key is None:
        return ()
    return ((name, f"Bearer {settings.key}" if name.lower() == "authorization" else settings.key),)


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
