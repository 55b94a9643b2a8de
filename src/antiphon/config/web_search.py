"""Where the web is searched: a SearXNG server, or any service that answers a query with JSON.

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

from antiphon.config.help_text import Group
from antiphon.config.value_types import Count, Key, Name
from antiphon.errors import StartupError

WEB_SEARCH = Group("Web search")
_VARIABLE = "env:"


class WebSearchSettings(Struct, frozen=True, kw_only=True):
    """A field `url` is the setting `web_search_url`."""

    url: Annotated[
        Name | None,
        WEB_SEARCH(
            "What searches the web for models: searxng+https://HOST, or json+https://… with {query} in it (see"
            " web-search). http without TLS likewise; it may be a private address.",
            "none: web_search is not offered",
            "web_search",
        ),
    ] = None
    key: Annotated[
        Key | None, WEB_SEARCH("Key for it, and for nobody else; `env:NAME` takes it from a variable.", "none")
    ] = None
    key_header: Annotated[Key, WEB_SEARCH("Header that the key is sent in.", "Authorization, as `Bearer KEY`")] = (
        "Authorization"
    )
    body: Annotated[
        Name | None, WEB_SEARCH("JSON to POST, with {query} in it; without one, the URL is fetched with GET.", "none")
    ] = None
    results: Annotated[Name, WEB_SEARCH("Where the list of results is in its JSON: keys, joined by dots.")] = "results"
    link: Annotated[Name, WEB_SEARCH("Where a result has its URL, likewise.")] = "url"
    title: Annotated[Name, WEB_SEARCH("Where a result has its title.")] = "title"
    snippet: Annotated[Name, WEB_SEARCH("Where a result has its text.")] = "content"
    timeout: Annotated[
        Annotated[float, Meta(gt=0)], WEB_SEARCH("Seconds that a search may take, and reading a page likewise.")
    ] = 10.0
    max_pages: Annotated[Count, WEB_SEARCH("Pages, results included, that one response may look at.")] = 100

    def __repr__(self) -> str:
        """Without the key; a URL may hold one too."""
        return f"WebSearchSettings(url={'…' if self.url else None!r})"


def with_key(given: WebSearchSettings) -> WebSearchSettings:
    """With the key itself where a variable holds it."""
    if given.key is None or not given.key.startswith(_VARIABLE):
        return given
    variable = given.key.removeprefix(_VARIABLE)
    if not (key := os.environ.get(variable, "").strip()):
        raise StartupError(f"web_search_key is to be taken from {variable}, which is not set.")
    return replace(given, key=key)
