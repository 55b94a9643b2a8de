"""Settings of the web search service: a SearXNG server, or any service that answers a query with JSON.

[web_search]                                       [web_search]
url = "searxng+https://search.example"             url = "json+https://api.example/search?q={query}&count={count}"
                                                   key = "env:SEARCH_KEY"
                                                   key_header = "X-Subscription-Token"
                                                   results = "web.results"
"""

import os
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.config.help_text import SettingGroup
from antiphon.config.value_types import Count, Key, Name
from antiphon.errors import StartupError

WEB_SEARCH = SettingGroup("Web search")
_VARIABLE_PREFIX = "env:"


class WebSearchSettings(Struct, frozen=True, kw_only=True):
    """The `[web_search]` table: the field `url` is the setting `web_search_url`."""

    url: Annotated[
        Name | None,
        WEB_SEARCH(
            "Web search service of the web_search tool: searxng+https://HOST, or json+https://… with {query} (see"
            " web-search). Plain http and private addresses are allowed.",
            "none: web_search is not available",
            "web_search",
        ),
    ] = None
    key: Annotated[
        Key | None, WEB_SEARCH("API key of the service, sent to it only; `env:NAME` reads it from a variable.", "none")
    ] = None
    key_header: Annotated[Key, WEB_SEARCH("Header to send the key in.", "Authorization, as `Bearer KEY`")] = (
        "Authorization"
    )
    body: Annotated[
        Name | None,
        WEB_SEARCH("JSON body to POST, with {query} in it; without it, the URL is fetched with GET.", "none"),
    ] = None
    results: Annotated[Name, WEB_SEARCH("Path of the list of results in the JSON reply: keys, joined by dots.")] = (
        "results"
    )
    link: Annotated[Name, WEB_SEARCH("Path of the URL in a result, likewise.")] = "url"
    title: Annotated[Name, WEB_SEARCH("Path of the title in a result.")] = "title"
    snippet: Annotated[Name, WEB_SEARCH("Path of the text in a result.")] = "content"
    timeout: Annotated[
        Annotated[float, Meta(gt=0)], WEB_SEARCH("Time limit of one search, and of fetching one page, in seconds.")
    ] = 10.0
    max_pages: Annotated[
        Count, WEB_SEARCH("Maximum number of pages, result pages included, that one response may open.")
    ] = 100

    def __repr__(self) -> str:
        """Omits the key, and the URL, which may contain one."""
        return f"WebSearchSettings(url={'…' if self.url else None!r})"


def resolve_key(settings: WebSearchSettings) -> WebSearchSettings:
    """Replace `env:NAME` by the value of the variable in the key. Raises StartupError if it is not set."""
    if settings.key is None or not settings.key.startswith(_VARIABLE_PREFIX):
        return settings
    variable = settings.key.removeprefix(_VARIABLE_PREFIX)
    if not (key := os.environ.get(variable, "").strip()):
        raise StartupError(f"web_search_key is read from {variable}, which is not set.")
    return replace(settings, key=key)
