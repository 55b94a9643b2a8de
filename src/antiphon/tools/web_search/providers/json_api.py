"""Provider for any service that returns JSON over HTTP: `json+https://host/path?q={query}&count={count}`.

{query}, {count}, {language}, {country}, {region}, {city} and {timezone} are substituted in the URL and in the body, if
one is posted. Dotted paths of keys and indexes select the results and their fields.
"""

import re
from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient
from antiphon.errors import StartupError
from antiphon.tools.web_search.providers.base import SearchClient, SearchQuery, SearchResult, as_list, as_text

_QUERY_PLACEHOLDER = "{query}"
_PLACEHOLDER = re.compile(r"\{[a-z]{1,16}\}")
_MAX_DEPTH = 32


class JsonApi:
    """Searches with a generic JSON API."""

    def __init__(self, settings: WebSearchSettings, url: str, egress: EgressClient) -> None:
        self._settings = settings
        self._url = url
        self._body = None if settings.body is None else _parse_template(settings.body)
        if _QUERY_PLACEHOLDER not in url + (settings.body or ""):
            raise StartupError(f"Neither --web-search-url nor --web-search-body contains {_QUERY_PLACEHOLDER}.")
        self._client = SearchClient(settings, url.partition("?")[0].partition("{")[0], egress)

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        values = {f"{{{name}}}": value for name, value in msgspec.structs.asdict(query).items()}
        url = _PLACEHOLDER.sub(lambda match: quote(str(values.get(match[0], match[0])), safe=""), self._url)
        body = None if self._body is None else msgspec.json.encode(_fill(self._body, values))
        settings = self._settings
        return [
            SearchResult(*[as_text(_get_path(row, path)) for path in (settings.link, settings.title, settings.snippet)])
            for row in as_list(_get_path(await self._client.fetch_json(url, body), settings.results))
        ]


def _parse_template(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise StartupError(f"--web-search-body is not valid JSON: {error}.") from None


def _fill(template: Any, values: dict[str, Any], depth: int = 0) -> Any:
    """Substitute placeholders. A string that is only a placeholder becomes the value itself: "{count}" becomes a
    number.
    """
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
