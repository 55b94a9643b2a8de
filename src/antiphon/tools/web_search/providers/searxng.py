"""Provider for SearXNG, a metasearch engine: `searxng+https://host`. Its settings must enable the format json.

GET /search?q=otters&format=json&language=de-DE → {"results": [{"url": …, "title": …, "content": …}, …]}
"""

from urllib.parse import urlencode

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient
from antiphon.tools.web_search.providers.base import SearchClient, SearchQuery, SearchResult, as_list, as_text


class SearXng:
    """Searches with a SearXNG instance."""

    def __init__(self, settings: WebSearchSettings, url: str, egress: EgressClient) -> None:
        self._client = SearchClient(settings, url, egress)
        self._url = url.partition("?")[0].rstrip("/").removesuffix("/search") + "/search"

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        params = {"q": query.query, "format": "json"}
        if query.language:
            params["language"] = query.language
        answer = await self._client.fetch_json(f"{self._url}?{urlencode(params)}")
        rows = as_list(answer.get("results") if isinstance(answer, dict) else None)
        return [
            SearchResult(as_text(row.get("url")), as_text(row.get("title")), as_text(row.get("content")))
            for row in rows
            if isinstance(row, dict)
        ]
