"""Any service that answers a query with JSON over HTTP: `json+https://host/path?q={query}&count={count}`.

{query}, {count}, {language}, {country}, {region}, {city} and {timezone} are filled in, in the URL and in the body, if
one is to be posted. Where the results stand, and what in them, is said by paths: keys and numbers, joined by dots.
"""

import re
from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.config.web_search import WebSearchSettings
from antiphon.egress import Egress
from antiphon.errors import StartupError
from antiphon.tools.web_search.providers.base import Desk, Found, Question, rows_of, text_of

_QUERY = "{query}"
_MARK = re.compile(r"\{[a-z]{1,16}\}")
_DEEPEST = 32


class JsonApi:
    def __init__(self, settings: WebSearchSettings, url: str, egress: Egress) -> None:
        self._settings = settings
        self._url = url
        self._body = None if settings.body is None else _template(settings.body)
        if _QUERY not in url + (settings.body or ""):
            raise StartupError(f"--web-search-url has no {_QUERY} in it, nor has --web-search-body.")
        self._desk = Desk(settings, url.partition("?")[0].partition("{")[0], egress)

    async def search(self, question: Question) -> list[Found]:
        values = {f"{{{name}}}": value for name, value in msgspec.structs.asdict(question).items()}
        url = _MARK.sub(lambda mark: quote(str(values.get(mark[0], mark[0])), safe=""), self._url)
        body = None if self._body is None else msgspec.json.encode(_filled(self._body, values))
        settings = self._settings
        return [
            Found(*[text_of(_at(row, path)) for path in (settings.link, settings.title, settings.snippet)])
            for row in rows_of(_at(await self._desk.ask(url, body), settings.results))
        ]


def _template(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise StartupError(f"--web-search-body is no JSON: {error}.") from None


def _filled(template: Any, values: dict[str, Any], depth: int = 0) -> Any:
    """A text that is nothing but a mark becomes the value itself: "{count}" is a number."""
    if isinstance(template, str):
        if template in values:
            return values[template]
        return _MARK.sub(lambda mark: str(values.get(mark[0], mark[0])), template)
    if depth < _DEEPEST and isinstance(template, dict):
        return {key: _filled(value, values, depth + 1) for key, value in template.items()}
    if depth < _DEEPEST and isinstance(template, list):
        return [_filled(value, values, depth + 1) for value in template]
    return template


def _at(value: Any, path: str) -> Any:
    """None if there is nothing."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step[:6]) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
