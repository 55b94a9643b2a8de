"""Web browsing of one response: searches, opened pages, finds. Its state ends with the response.

Errors are raised with messages for the model. URLs and page texts are untrusted.
"""

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress

from msgspec import UNSET, Struct

from antiphon.core.deltas import Progress, ToolOutputContent
from antiphon.egress.urls import parse_url
from antiphon.errors import AntiphonError, UrlRefused
from antiphon.protocol.types import items as it
from antiphon.tools.base import DeltaSink, ModelToolCall, ResponseTool, Rewriter, ToolResult
from antiphon.tools.untrusted_text import escape_markers
from antiphon.tools.web_search import functions
from antiphon.tools.web_search.citations import CitationRewriter
from antiphon.tools.web_search.page_fetch import PageReader
from antiphon.tools.web_search.page_view import (
    PagePosition,
    ResponsePages,
    WebPage,
    clean_title,
    display_host,
    render_matches,
    render_window,
    wrap_lines,
)
from antiphon.tools.web_search.providers import SearchProvider

MAX_RESULTS = 20
MAX_LINES = 1000
MAX_TOTAL_CHARACTERS = 4_000_000  # of all pages of a response
_CONTEXT_LINES = 2  # lines shown before and after a match
INCLUDE_SOURCES, INCLUDE_RESULTS = "web_search_call.action.sources", "web_search_call.results"

Action = it.SearchAction | it.OpenPageAction | it.FindAction


class BrowserServices(Struct, frozen=True, kw_only=True):
    """Services of the server that all responses share."""

    provider: SearchProvider
    reader: PageReader
    max_pages: int  # per response
    max_seconds: float  # per call


class BrowserTool(ResponseTool):
    """Items and citations of the web_search tool within one response, whoever reads the pages."""

    def __init__(self, pages: ResponsePages, include: frozenset[str]) -> None:
        self._pages = pages
        self._include = include

    def start_item(self, call: ModelToolCall) -> it.WebSearchCall:
        return it.WebSearchCall(status="in_progress", action=self._build_action(call))

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        item = it.WebSearchCall(status="failed", action=self._build_action(call))
        return ToolResult(item=item, model_output=f"Error: {failure.message}")

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        return CitationRewriter(self._pages) if self._pages else None

    async def close(self) -> None:
        self._pages = ResponsePages(0, 0)

    def _build_action(self, call: ModelToolCall) -> Action:
        """Build the action from the call and the pages that were shown, as far as possible."""
        try:
            arguments = functions.parse_arguments(call.name, call.arguments)
        except AntiphonError:
            return _make_empty_action(call.name)
        match arguments:
            case functions.SearchArguments(query=query):
                return it.SearchAction(query=escape_markers(query), queries=[escape_markers(query)])
            case functions.OpenArguments():
                return self._build_open_action(arguments)
            case functions.FindArguments(pattern=pattern, cursor=cursor):
                return it.FindAction(url=self._get_page_url(cursor), pattern=pattern)

    @abstractmethod
    def _build_open_action(self, arguments: functions.OpenArguments) -> it.OpenPageAction: ...

    @abstractmethod
    def _get_page_url(self, cursor: int | None) -> str:
        """Return the URL of a page that was shown, or of the current one; "" if there is none."""


class Browser(BrowserTool):
    """The web_search tool within one response; see `ResponseTool`."""

    max_seconds = 0.0  # from the settings

    def __init__(self, services: BrowserServices, options: functions.SearchOptions, include: frozenset[str]) -> None:
        super().__init__(ResponsePages(services.max_pages, MAX_TOTAL_CHARACTERS), include)
        self._services = services
        self._options = options
        self.max_seconds = services.max_seconds

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        arguments = functions.parse_arguments(call.name, call.arguments)
        match arguments:
            case functions.SearchArguments():
                return await self._search(arguments, call, emit)
            case functions.OpenArguments():
                return await self._open(arguments, call, emit)
            case functions.FindArguments():
                return await self._find(arguments, call, emit)

    def restore_output(self, output: ToolOutputContent) -> None:
        if isinstance(output, str):
            self._pages.restore(output)

    async def _search(self, arguments: functions.SearchArguments, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        cursor = self._pages.reserve()
        await emit(Progress(call.key, "searching"))
        size = self._options.context_size
        count = min(MAX_RESULTS, arguments.topn if arguments.topn is not None and arguments.topn > 0 else size.results)
        query = escape_markers(arguments.query)
        candidates = await self._services.provider.search(self._options.build_query(query, count))
        if not (results := [*self._select_results(candidates, count)]):
            item = self._build_search_item(query, results)
            return ToolResult(item=item, model_output=f"The search for {query!r} found nothing.")
        page = _build_result_page(query, results)
        self._pages.add(cursor, page)
        return ToolResult(
            item=self._build_search_item(query, results),
            model_output=render_window(cursor, page, 0, MAX_LINES, size.characters + count * size.snippet),
        )

    def _select_results(self, candidates: Iterable[it.WebSearchResult], count: int) -> Iterable[it.WebSearchResult]:
        """Yield the results that may be opened, without duplicates, with shortened snippets."""
        seen: set[str] = set()
        for candidate in candidates:
            try:
                url = parse_url(candidate.url, "")
            except UrlRefused:
                continue
            if str(url) in seen or not self._options.allows(url.host):
                continue
            seen.add(str(url))
            snippet = " ".join(escape_markers(candidate.snippet).split())[: self._options.context_size.snippet]
            yield it.WebSearchResult(url=str(url), title=clean_title(candidate.title, url.host), snippet=snippet)
            if len(seen) == count:
                return

    async def _open(self, arguments: functions.OpenArguments, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        item = it.WebSearchCall(status="completed", action=self._build_open_action(arguments))
        if (url := self._resolve_link(arguments)) is None:
            cursor, page = self._pages.require(arguments.cursor)
            await emit(Progress(call.key, "searching"))
        else:
            cursor, page = await self._load_page(self._check_allowed(url), call, emit)
        self._pages.select(cursor)
        size, requested = self._options.context_size, arguments.num_lines
        lines = min(MAX_LINES, requested) if requested is not None and requested > 0 else size.lines
        return ToolResult(
            item=item, model_output=render_window(cursor, page, max(0, arguments.loc or 0), lines, size.characters)
        )

    async def _load_page(self, url: str, call: ModelToolCall, emit: DeltaSink) -> tuple[int, WebPage]:
        """Fetch a page, unless it was fetched before."""
        existing = self._pages.find_cursor(url)
        cursor = self._pages.reserve() if existing is None else existing
        await emit(Progress(call.key, "searching"))
        if existing is None:
            content, final_url = await self._services.reader.read_page(url)
            self._check_allowed(final_url)
            text = content.text if content.links else escape_markers(content.text)
            title = clean_title(content.title, self._pages.find_title(url) or display_host(final_url))
            page = WebPage(url=final_url, title=title, lines=tuple(wrap_lines(text)), links=content.links)
            self._pages.add(cursor, page, url, final_url)
        return self._pages.require(cursor)

    async def _find(self, arguments: functions.FindArguments, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        cursor, page = self._pages.require(arguments.cursor)
        await emit(Progress(call.key, "searching"))
        self._pages.select(cursor)
        item = it.WebSearchCall(status="completed", action=it.FindAction(url=page.url, pattern=arguments.pattern))
        return ToolResult(
            item=item,
            model_output=render_matches(
                cursor, page, arguments.pattern, _CONTEXT_LINES, self._options.context_size.characters
            ),
        )

    def _resolve_link(self, arguments: functions.OpenArguments) -> str | None:
        link = arguments.link
        if isinstance(link, int):
            return self._pages.get_link(arguments.cursor, link)
        return link if link is None or "://" in link else f"https://{link}"

    def _check_allowed(self, url: str) -> str:
        """Return the normalised URL; raises UrlRefused if its domain is not allowed."""
        parsed = parse_url(url, "id")
        if not self._options.allows(parsed.host):
            raise UrlRefused(f"{parsed.host} is none of the domains that may be looked at here.", param="id")
        return str(parsed)

    def _build_search_item(self, query: str, results: list[it.WebSearchResult]) -> it.WebSearchCall:
        sources = [it.Source(url=result.url) for result in results] if INCLUDE_SOURCES in self._include else UNSET
        return it.WebSearchCall(
            status="completed",
            action=it.SearchAction(query=query, queries=[query], sources=sources),
            results=results if INCLUDE_RESULTS in self._include else UNSET,
        )

    def _build_open_action(self, arguments: functions.OpenArguments) -> it.OpenPageAction:
        url = ""
        with suppress(AntiphonError):
            url = self._resolve_link(arguments) or self._get_page_url(arguments.cursor)
        return it.OpenPageAction(url=url or UNSET)

    def _get_page_url(self, cursor: int | None) -> str:
        with suppress(AntiphonError):
            return self._pages.require(cursor)[1].url
        return ""


def _make_empty_action(name: str) -> Action:
    """Return the action of a call whose arguments do not fit."""
    if name == functions.OPEN:
        return it.OpenPageAction()
    return it.FindAction(url="") if name == functions.FIND else it.SearchAction(query="", queries=[])


def _build_result_page(query: str, results: list[it.WebSearchResult]) -> WebPage:
    """Build a page of results: a link, its URL and the snippet for each."""
    lines: list[str] = []
    positions: list[PagePosition] = []
    for number, result in enumerate(results):
        first = len(lines)
        lines += [f"【{number}†{result.title}†{display_host(result.url)}】", result.url, *wrap_lines(result.snippet)]
        positions.append(PagePosition(first, len(lines) - 1, result.url, result.title))
        lines.append("")
    return WebPage(
        url="",
        title=f'Results for "{clean_title(query)}"',
        lines=tuple(lines[:-1]),
        links=tuple([result.url for result in results]),
        positions=tuple(positions),
    )
