"""Search providers, which find pages for a query, and their HTTP client. Their responses are untrusted.

The operator chooses the provider by the first part of the scheme of --web-search-url (`searxng+https://…`), so it may
have a private address. Redirects to other hosts are not followed. Error messages for clients contain neither its
address nor its key; the log contains the address, but never the key.
"""

import logging
import re
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient, FetchLimits, RequestHeaders
from antiphon.errors import FetchFailed, StartupError, UrlRefused
from antiphon.plugins import find_plugin, list_names
from antiphon.protocol.types.items import WebSearchResult

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
    types: str = ""  # content types of the results: "text", "image" or "text,image"; "": any


class SearchProvider(Protocol):
    """A search service."""

    fields: frozenset[str]  # fields of a query that have an effect

    async def search(self, query: SearchQuery) -> list[WebSearchResult]:
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


_QUERY_PLACEHOLDER = "{query}"
_PLACEHOLDER = re.compile(r"\{[a-z]{1,16}\}")
_MAX_DEPTH = 32


class JsonApi(SearchClient):
    """Any service that returns JSON over HTTP: `json+https://host/path?q={query}&count={count}`.

    {query}, {count}, {language}, {country}, {region}, {city}, {timezone} and {types} are substituted in the URL and in
    the body, if one is posted. Dotted paths of keys and indexes select the results and their fields.
    """

    def __init__(self, settings: WebSearchSettings, url: str, egress: EgressClient) -> None:
        super().__init__(settings, url.partition("?")[0].partition("{")[0], egress)
        self._url = url
        self._body = None if settings.body is None else _parse_template(settings.body)
        template = url + (settings.body or "")
        self.fields = frozenset([placeholder[1:-1] for placeholder in _PLACEHOLDER.findall(template)])
        if _QUERY_PLACEHOLDER not in template:
            raise StartupError(f"Neither --web-search-url nor --web-search-body contains {_QUERY_PLACEHOLDER}.")

    async def search(self, query: SearchQuery) -> list[WebSearchResult]:
        values = {f"{{{name}}}": value for name, value in msgspec.structs.asdict(query).items()}
        url = _PLACEHOLDER.sub(lambda match: quote(str(values.get(match[0], match[0])), safe=""), self._url)
        body = None if self._body is None else msgspec.json.encode(_fill(self._body, values))
        reply, settings = await self.fetch_json(url, body), self.settings
        return _select_results(reply, settings.results, (settings.link, settings.title, settings.snippet))


def _select_results(reply: Any, results: str, fields: tuple[str, str, str]) -> list[WebSearchResult]:
    """Return the results at a dotted path of the reply; `fields` are the paths of URL, title and snippet in each."""
    rows = _get_path(reply, results)
    found = [[_get_path(row, path) for path in fields] for row in rows] if isinstance(rows, list) else []
    texts = [[value if isinstance(value, str) else "" for value in values] for values in found]
    return [WebSearchResult(url=url, title=title, snippet=snippet) for url, title, snippet in texts]


def _parse_template(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise StartupError(f"--web-search-body is not valid JSON: {error}.") from None


def _fill(template: Any, values: dict[str, Any], depth: int = 0) -> Any:
    """Substitute placeholders. A string that is one placeholder becomes the value: "{count}" becomes a number."""
    if isinstance(template, str):
        if template in values:
            return values[template]
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[0], match[0])), template)
    if depth < _MAX_DEPTH and isinstance(template, dict):
        return {key: _fill(value, values, depth + 1) for key, value in template.items()}
    if depth < _MAX_DEPTH and isinstance(template, list):
        return [_fill(value, values, depth + 1) for value in template]
    return template


def _get_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step[:6]) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


class SearXng(SearchClient):
    """SearXNG, a metasearch engine: `searxng+https://host`. Its settings must enable the format json.

    GET /search?q=otters&format=json&language=de-DE → {"results": [{"url": …, "title": …, "content": …}, …]}

    Results of the category images are pages; the URL of the image, `img_src`, is added to the snippet.
    """

    fields = frozenset({"query", "language", "types"})

    def __init__(self, settings: WebSearchSettings, url: str, egress: EgressClient) -> None:
        super().__init__(settings, url, egress)
        self._url = url.partition("?")[0].rstrip("/").removesuffix("/search") + "/search"

    async def search(self, query: SearchQuery) -> list[WebSearchResult]:
        params = {"q": query.query, "format": "json"}
        if query.language:
            params["language"] = query.language
        if query.types:
            params["categories"] = query.types.replace("text", "general").replace("image", "images")
        reply = await self.fetch_json(f"{self._url}?{urlencode(params)}")
        results = _select_results(reply, "results", ("url", "title", "content"))
        images = _select_results(reply, "results", ("img_src", "title", "content"))
        for result, image in zip(results, images, strict=True):
            result.snippet = f"{result.snippet} {image.url}".strip()
        return results


PROVIDERS: dict[str, Callable[[WebSearchSettings, str, EgressClient], SearchProvider]] = {
    "json": JsonApi,
    "searxng": SearXng,
}


def make_provider(settings: WebSearchSettings, egress: EgressClient) -> SearchProvider:
    """Create the provider; the settings must have a URL. `searxng://host` means `searxng+https://host`."""
    assert settings.url is not None
    scheme, colon, address = settings.url.partition("://")
    name, _, kind = scheme.partition("+")
    make = find_plugin("search", name, PROVIDERS) if colon and kind in ("", "http", "https") else None
    if make is None:
        expected = " or ".join(f"{prefix}+https://…" for prefix in list_names("search", PROVIDERS))
        raise StartupError(f"{_FLAG} is invalid; expected {expected}.")
    provider: SearchProvider = make(settings, f"{kind or 'https'}://{address}", egress)
    return provider
