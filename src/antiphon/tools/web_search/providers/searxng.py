"""SearXNG, which asks many search engines at once: `searxng+https://host`. Its settings must allow the format json.

GET /search?q=otters&format=json&language=de-DE → {"results": [{"url": …, "title": …, "content": …}, …]}
"""

from urllib.parse import urlencode

from antiphon.config.web_search import WebSearchSettings
from antiphon.egress import Egress
from antiphon.tools.web_search.providers.base import Desk, Found, Question, rows_of, text_of


class SearXng:
    def __init__(self, settings: WebSearchSettings, url: str, egress: Egress) -> None:
        self._desk = Desk(settings, url, egress)
        self._url = url.partition("?")[0].rstrip("/").removesuffix("/search") + "/search"

    async def search(self, question: Question) -> list[Found]:
        asked = {"q": question.query, "format": "json"}
        if question.language:
            asked["language"] = question.language
        answer = await self._desk.ask(f"{self._url}?{urlencode(asked)}")
        rows = rows_of(answer.get("results") if isinstance(answer, dict) else None)
        return [
            Found(text_of(row.get("url")), text_of(row.get("title")), text_of(row.get("content")))
            for row in rows
            if isinstance(row, dict)
        ]
