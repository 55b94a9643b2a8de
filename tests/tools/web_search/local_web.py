"""A small web on loopback: a search server that speaks as SearXNG does, and pages beside it, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from antiphon.config import Config
from antiphon.config.web_search import WebSearchSettings
from antiphon.core.deltas import Delta
from antiphon.protocol.types.tools import WebSearchTool
from antiphon.tools.base import Use, Used
from antiphon.tools.web_search.browser import Browser
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import Behaviour, Host, Writer, answer, egress, hosting

HTML, TEXT = "Content-Type: text/html; charset=utf-8", "Content-Type: text/plain"
OTTERS = """# Otters

Otters are carnivorous mammals that live in and near water, and they eat fish above all else.

The sea otter holds hands with others while it sleeps, so that the sea does not carry it away from its raft.
"""
FISH = "# Fish\n\nFish live in water and breathe through gills; otters know that very well, and so do herons.\n"
# HTML is read by a process of its own, which takes its time: only where that matters.
PAGE = """<!doctype html><html><head><title>All about otters</title></head><body><article>
<h1>Otters</h1>
<p>Otters are carnivorous mammals that live in and near water, and they eat <a href="/fish">fish</a> above all else.</p>
<p>The sea otter holds hands with others while it sleeps, so that the sea does not carry it away from its raft.</p>
</article></body></html>"""


class Web:
    """What is found, what stands on the pages, and what was asked."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] | None = None
        self.pages: dict[str, bytes | Behaviour] = {
            "/otters": answer(OTTERS.encode(), TEXT),
            "/otters.html": page(PAGE),
            "/fish": answer(FISH.encode(), TEXT),
            "/notes.txt": answer(b"Notes\n\notters: 3\nherons: 1\n", TEXT),
        }
        self.asked: list[dict[str, str]] = []
        self.host: Host | None = None
        self.silent = False  # it never answers

    @property
    def url(self) -> str:
        assert self.host is not None
        return f"http://127.0.0.1:{self.host.port}"

    async def behave(self, head: bytes, writer: Writer) -> None:
        if self.silent:
            await asyncio.sleep(60)
        path = urlsplit(head.split(b" ")[1].decode())
        if path.path == "/search":
            writer.write(self._search(dict(parse_qsl(path.query))))
            return
        found = self.pages.get(path.path, answer(b"nothing here", status="404 Not Found"))
        if isinstance(found, bytes):
            writer.write(found)
        else:
            await found(head, writer)

    def _search(self, asked: dict[str, str]) -> bytes:
        """As SearXNG's documentation has it: 400 without a query, a page for people without `format`."""
        self.asked.append(asked)
        if not asked.get("q"):
            return answer(b"No query", status="400 Bad Request")
        if asked.get("format") != "json":
            return page("<html>results for people</html>")
        told = {
            "query": asked["q"],
            "number_of_results": 0,
            "results": self.results if self.results is not None else self._found(),
            "answers": [],
            "corrections": [],
            "infoboxes": [],
            "suggestions": ["otter food"],
            "unresponsive_engines": [["some engine", "timeout"]],
        }
        return answer(json.dumps(told).encode(), "Content-Type: application/json")

    def _found(self) -> list[dict[str, Any]]:
        return [
            result(f"{self.url}/otters", "All about otters", "They eat fish."),
            result(f"{self.url}/fish", "Fish", "They live in water."),
        ]


def page(html: str, *headers: str) -> bytes:
    return answer(html.encode(), *(headers or (HTML,)))


def result(url: str, title: str, content: str) -> dict[str, Any]:
    more = {"engine": "some engine", "engines": ["some engine"], "positions": [1], "score": 1.0, "category": "general"}
    return {"url": url, "title": title, "content": content, **more}


@asynccontextmanager
async def a_web() -> AsyncIterator[Web]:
    web = Web()
    async with hosting(web.behave) as host:
        web.host = host
        yield web


def tool(web: Web, *opened: str, **settings: Any) -> WebSearch:
    """Pages are opened where the test's own web is, unless it says otherwise."""
    given = WebSearchSettings(**{"url": f"searxng+{web.url}", "timeout": 60.0, **settings})
    assert web.host is not None
    return WebSearch(
        Config(web_search=given, egress_timeout=60.0), egress(*(opened or (f"127.0.0.1:{web.host.port}",)))
    )


def browser(web: Web, declared: WebSearchTool | None = None, *include: str) -> Browser:
    return tool(web).begin(declared or WebSearchTool(), "tenant", frozenset(include))


async def nobody(delta: Delta) -> None:
    pass


def use(name: str, arguments: Any, key: int = 0) -> Use:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Use(key=key, id=f"ws_{key}", name=name, arguments=given)


async def run(at: Browser, name: str, tell: Callable[[Delta], Awaitable[None]] = nobody, **arguments: Any) -> Used:
    return await at.run(use(name, arguments), tell)


async def said(at: Browser, name: str, **arguments: Any) -> str:
    used = await run(at, name, **arguments)
    assert isinstance(used.said, str)
    return used.said
