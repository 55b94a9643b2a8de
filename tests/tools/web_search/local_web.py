"""A small web on loopback: a search server with the API of SearXNG and pages beside it, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from antiphon.config import Config
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.core.deltas import Delta
from antiphon.protocol.types.tools import WebSearchTool
from antiphon.tools.base import ModelToolCall, ToolResult, ToolServices
from antiphon.tools.web_search.browser import Browser
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import Behaviour, Host, build_response, make_egress_client, run_host
from tests.support.local_servers import Writer

HTML, TEXT = "Content-Type: text/html; charset=utf-8", "Content-Type: text/plain"
OTTERS = """# Otters

Otters are carnivorous mammals that live in and near water, and they eat fish above all else.

The sea otter holds hands with others while it sleeps, so that the sea does not carry it away from its raft.
"""
FISH = "# Fish\n\nFish live in water and breathe through gills; otters know that very well, and so do herons.\n"
# HTML is converted by a separate process, which is slow: used only where it matters.
PAGE = """<!doctype html><html><head><title>All about otters</title></head><body><article>
<h1>Otters</h1>
<p>Otters are carnivorous mammals that live in and near water, and they eat <a href="/fish">fish</a> above all else.</p>
<p>The sea otter holds hands with others while it sleeps, so that the sea does not carry it away from its raft.</p>
</article></body></html>"""


class LocalWeb:
    """The search results, the pages, and the queries received."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] | None = None
        self.pages: dict[str, bytes | Behaviour] = {
            "/otters": build_response(OTTERS.encode(), TEXT),
            "/otters.html": make_page(PAGE),
            "/fish": build_response(FISH.encode(), TEXT),
            "/notes.txt": build_response(b"Notes\n\notters: 3\nherons: 1\n", TEXT),
        }
        self.queries: list[dict[str, str]] = []
        self.host: Host | None = None
        self.silent = False  # whether requests are never answered

    @property
    def url(self) -> str:
        assert self.host is not None
        return f"http://127.0.0.1:{self.host.port}"

    async def respond(self, head: bytes, writer: Writer) -> None:
        if self.silent:
            await asyncio.sleep(60)
        path = urlsplit(head.split(b" ")[1].decode())
        if path.path == "/search":
            writer.write(self._search(dict(parse_qsl(path.query))))
            return
        found = self.pages.get(path.path, build_response(b"nothing here", status="404 Not Found"))
        if isinstance(found, bytes):
            writer.write(found)
        else:
            await found(head, writer)

    def _search(self, query: dict[str, str]) -> bytes:
        """Answer as documented for SearXNG: 400 without a query, an HTML page without `format`."""
        self.queries.append(query)
        if not query.get("q"):
            return build_response(b"No query", status="400 Bad Request")
        if query.get("format") != "json":
            return make_page("<html>results for people</html>")
        payload = {
            "query": query["q"],
            "number_of_results": 0,
            "results": self.results if self.results is not None else self._default_results(),
            "answers": [],
            "corrections": [],
            "infoboxes": [],
            "suggestions": ["otter food"],
            "unresponsive_engines": [["some engine", "timeout"]],
        }
        return build_response(json.dumps(payload).encode(), "Content-Type: application/json")

    def _default_results(self) -> list[dict[str, Any]]:
        return [
            make_result(f"{self.url}/otters", "All about otters", "They eat fish."),
            make_result(f"{self.url}/fish", "Fish", "They live in water."),
        ]


def make_page(html: str, *headers: str) -> bytes:
    return build_response(html.encode(), *(headers or (HTML,)))


def make_result(url: str, title: str, content: str) -> dict[str, Any]:
    metadata = {
        "engine": "some engine",
        "engines": ["some engine"],
        "positions": [1],
        "score": 1.0,
        "category": "general",
    }
    return {"url": url, "title": title, "content": content, **metadata}


@asynccontextmanager
async def run_local_web() -> AsyncIterator[LocalWeb]:
    web = LocalWeb()
    async with run_host(web.respond) as host:
        web.host = host
        yield web


def make_tool(web: LocalWeb, *allowed_hosts: str, **settings: Any) -> WebSearch:
    """Create the tool. Pages may be opened on `web` unless `allowed_hosts` says otherwise."""
    search_settings = WebSearchSettings(**{"url": f"searxng+{web.url}", "timeout": 60.0, **settings})
    assert web.host is not None
    config = Config.from_settings(web_search=search_settings, egress_timeout=60.0)
    egress = make_egress_client(*(allowed_hosts or (f"127.0.0.1:{web.host.port}",)))
    return WebSearch(ToolServices(config=config, egress=egress))


def make_browser(web: LocalWeb, declared: WebSearchTool | None = None, *include: str) -> Browser:
    return make_tool(web).begin(declared or WebSearchTool(), "tenant", frozenset(include))


async def discard_delta(delta: Delta) -> None:
    pass


def make_call(name: str, arguments: Any, key: int = 0) -> ModelToolCall:
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ModelToolCall(key=key, id=f"ws_{key}", name=name, arguments=encoded)


async def run_tool(
    session: Browser, name: str, emit: Callable[[Delta], Awaitable[None]] = discard_delta, **arguments: Any
) -> ToolResult:
    return await session.run(make_call(name, arguments), emit)


async def run_tool_for_text(session: Browser, name: str, **arguments: Any) -> str:
    tool_result = await run_tool(session, name, **arguments)
    assert isinstance(tool_result.model_output, str)
    return tool_result.model_output
