"""What a provider is: something that finds pages for a query. What it answers is untrusted.

It is the operator's own choice, so it may be at a private address; a redirect to elsewhere is not followed, and what is
said of a failure names neither its place nor its key. Those stand in the log, the key nowhere.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.config.web_search import WebSearchSettings
from antiphon.egress import Caps, Egress, Sent
from antiphon.errors import FetchFailed, StartupError, UrlRefused

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024 * 1024
_FLAG = "--web-search-url"


class Question(Struct, frozen=True, kw_only=True):
    query: str
    count: int
    language: str = ""  # of the results, as de-DE; "": any
    country: str = ""  # of who asks: two capital letters
    region: str = ""
    city: str = ""
    timezone: str = ""


class Found(Struct, frozen=True):
    url: str
    title: str = ""
    snippet: str = ""


class Provider(Protocol):
    async def search(self, question: Question) -> list[Found]:
        """In the provider's order; raises FetchFailed. More than were asked for may come, and anything may be in it."""


class Desk:
    """Where providers ask: over HTTP, for JSON, within bounds."""

    def __init__(self, settings: WebSearchSettings, place: str, egress: Egress) -> None:
        """`place`: the URL of the service, for what it opens."""
        self.settings = settings
        try:
            self._egress = egress.towards(place, "web_search_url")
        except UrlRefused as error:
            raise StartupError(f"{_FLAG} does not fit: {error.message}") from None
        self._headers = _headers(settings)
        self._caps = Caps(bytes=MOST_BYTES, seconds=settings.timeout, first_seconds=settings.timeout, redirects=2,
                          accept="application/json")  # fmt: skip

    async def ask(self, url: str, body: bytes | None = None) -> Any:
        sent = Sent(headers=self._headers, body=body)
        try:
            fetched = await self._egress.fetch(url, "web_search", self._caps, sent)
        except (FetchFailed, UrlRefused) as error:
            log.warning("The web could not be searched: %s", error.message)
            raise FetchFailed("The search service of this server does not answer as it should.") from None
        try:
            return msgspec.json.decode(fetched.body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            log.warning("The web could not be searched: the service that %s names answers with no JSON.", _FLAG)
            raise FetchFailed("The search service of this server does not answer as it should.") from None


def _headers(settings: WebSearchSettings) -> tuple[tuple[str, str], ...]:
    name = settings.key_header
    if not name.replace("-", "").replace("_", "").isalnum():
        raise StartupError("--web-search-key-header is no name of a header.")
    if settings.key is None:
        return ()
    return ((name, f"Bearer {settings.key}" if name.lower() == "authorization" else settings.key),)


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def rows_of(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
