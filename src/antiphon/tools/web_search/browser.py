"""What one response does on the web: searches, opened pages, finds. Nothing of it outlives the response.

What went wrong is raised, as a sentence that the model reads; where a page is, and what its text says, is untrusted.
"""

from collections.abc import Iterable

from msgspec import UNSET, Struct

from antiphon.core.deltas import Said, Stage
from antiphon.egress.urls import read_url
from antiphon.errors import AntiphonError, UrlRefused
from antiphon.protocol.types.builtin_items import (
    FindAction,
    OpenPageAction,
    SearchAction,
    Source,
    WebSearchCall,
    WebSearchResult,
)
from antiphon.tools.base import Rewriter, Tell, Use, Used
from antiphon.tools.web_search.citations import Citations
from antiphon.tools.web_search.functions import FIND, OPEN, Asked, Find, Open, Search, read
from antiphon.tools.web_search.options import Wishes
from antiphon.tools.web_search.page_fetch import Reader
from antiphon.tools.web_search.page_view import Page, Pages, Spot, found, host_of, plain, shown, title_of, wrapped
from antiphon.tools.web_search.providers.base import Found, Provider

MOST_RESULTS = 20
MOST_LINES = 1000
MOST_CHARACTERS = 4_000_000  # of all pages of a response
_AROUND = 2  # lines shown on either side of what was found
_SOURCES, _RESULTS = "web_search_call.action.sources", "web_search_call.results"

Action = SearchAction | OpenPageAction | FindAction


class Means(Struct, frozen=True, kw_only=True):
    """What the server has for all of its responses."""

    provider: Provider
    reader: Reader
    pages: int  # that one response may look at
    seconds: float  # that one call may take


class Browser:
    def __init__(self, means: Means, wishes: Wishes, include: frozenset[str]) -> None:
        self._provider = means.provider
        self._reader = means.reader
        self._wishes = wishes
        self._include = include
        self._pages = Pages(means.pages, MOST_CHARACTERS)
        self.longest = means.seconds

    def opened(self, use: Use) -> WebSearchCall:
        return WebSearchCall(status="in_progress", action=self._action(use))

    async def run(self, use: Use, tell: Tell) -> Used:
        asked = read(use.name, use.arguments)
        match asked:
            case Search():
                return await self._search(asked, use, tell)
            case Open():
                return await self._open(asked, use, tell)
            case Find():
                return await self._find(asked, use, tell)

    def unrun(self, use: Use, why: str) -> Used:
        return Used(item=WebSearchCall(status="failed", action=self._action(use)), said=f"Error: {why}")

    def recall(self, said: Said) -> None:
        if isinstance(said, str):
            self._pages.recall(said)

    def rewriter(self) -> Rewriter | None:
        return Citations(self._pages) if self._pages else None

    async def close(self) -> None:
        self._pages = Pages(0, 0)

    async def _search(self, asked: Search, use: Use, tell: Tell) -> Used:
        cursor = self._pages.reserve()
        await tell(Stage(use.key, "searching"))
        measure = self._wishes.measure
        count = min(MOST_RESULTS, asked.topn if asked.topn is not None and asked.topn > 0 else measure.results)
        query = plain(asked.query)
        given = await self._provider.search(self._wishes.question(query, count))
        results = [*self._fit(given, count)]
        if not results:
            item = self._searched(query, results)
            return Used(item=item, said=f"The search for {query!r} found nothing.")
        page = _listed(query, results)
        self._pages.put(cursor, page)
        return Used(
            item=self._searched(query, results),
            said=shown(cursor, page, 0, MOST_LINES, measure.characters + count * measure.snippet),
        )

    def _fit(self, given: Iterable[Found], count: int) -> Iterable[Found]:
        """Those that could be opened, each once, with as much text as is wanted."""
        seen: set[str] = set()
        for one in given:
            try:
                url = read_url(one.url, "")
            except UrlRefused:
                continue
            if str(url) in seen or not self._wishes.allows(url.host):
                continue
            seen.add(str(url))
            snippet = " ".join(plain(one.snippet).split())[: self._wishes.measure.snippet]
            yield Found(str(url), title_of(one.title, url.host), snippet)
            if len(seen) == count:
                return

    async def _open(self, asked: Open, use: Use, tell: Tell) -> Used:
        item = WebSearchCall(status="completed", action=self._opening(asked))
        named = self._named(asked)
        if named is None:
            cursor, page = self._pages.find(asked.cursor)
            await tell(Stage(use.key, "searching"))
        else:
            cursor, page = await self._brought(self._allowed(named), use, tell)
        self._pages.turn_to(cursor)
        measure, wanted = self._wishes.measure, asked.num_lines
        lines = min(MOST_LINES, wanted) if wanted is not None and wanted > 0 else measure.lines
        return Used(item=item, said=shown(cursor, page, max(0, asked.loc or 0), lines, measure.characters))

    async def _brought(self, url: str, use: Use, tell: Tell) -> tuple[int, Page]:
        """From the web, unless it was brought before."""
        known = self._pages.known(url)
        cursor = self._pages.reserve() if known is None else known
        await tell(Stage(use.key, "searching"))
        if known is None:
            told, final = await self._reader.open(url)
            self._allowed(final)
            text = told.text if told.links else plain(told.text)
            title = title_of(told.title, self._pages.titled(url) or host_of(final))
            page = Page(url=final, title=title, lines=tuple(wrapped(text)), links=told.links)
            self._pages.put(cursor, page, url, final)
        return self._pages.find(cursor)

    async def _find(self, asked: Find, use: Use, tell: Tell) -> Used:
        cursor, page = self._pages.find(asked.cursor)
        await tell(Stage(use.key, "searching"))
        self._pages.turn_to(cursor)
        item = WebSearchCall(status="completed", action=FindAction(url=page.url, pattern=asked.pattern))
        return Used(item=item, said=found(cursor, page, asked.pattern, _AROUND, self._wishes.measure.characters))

    def _named(self, asked: Open) -> str | None:
        link = asked.link
        if isinstance(link, int):
            return self._pages.link(asked.cursor, link)
        return link if link is None or "://" in link else f"https://{link}"

    def _allowed(self, url: str) -> str:
        """As it is fetched."""
        named = read_url(url, "id")
        if not self._wishes.allows(named.host):
            raise UrlRefused(f"{named.host} is none of the domains that may be looked at here.", param="id")
        return str(named)

    def _searched(self, query: str, results: list[Found]) -> WebSearchCall:
        sources = [Source(url=one.url) for one in results] if _SOURCES in self._include else UNSET
        told = [WebSearchResult(url=one.url, title=one.title, snippet=one.snippet) for one in results]
        return WebSearchCall(
            status="completed",
            action=SearchAction(query=query, queries=[query], sources=sources),
            results=told if _RESULTS in self._include else UNSET,
        )

    def _action(self, use: Use) -> Action:
        """As far as it is known from the call alone."""
        try:
            asked: Asked | None = read(use.name, use.arguments)
        except AntiphonError:
            asked = None
        match asked:
            case Search(query=query):
                return SearchAction(query=plain(query), queries=[plain(query)])
            case Open():
                return self._opening(asked)
            case Find(pattern=pattern, cursor=cursor):
                return FindAction(url=self._url(cursor), pattern=pattern)
        if use.name == OPEN:
            return OpenPageAction()
        return FindAction(url="") if use.name == FIND else SearchAction(query="", queries=[])

    def _opening(self, asked: Open) -> OpenPageAction:
        try:
            url = self._named(asked) or self._url(asked.cursor)
        except AntiphonError:
            url = ""
        return OpenPageAction(url=url or UNSET)

    def _url(self, cursor: int | None) -> str:
        try:
            return self._pages.find(cursor)[1].url
        except AntiphonError:
            return ""


def _listed(query: str, results: list[Found]) -> Page:
    """A page of results: a link, its URL and a few words for each."""
    lines: list[str] = []
    spots: list[Spot] = []
    for number, one in enumerate(results):
        first = len(lines)
        lines += [f"【{number}†{one.title}†{host_of(one.url)}】", one.url, *wrapped(one.snippet)]
        spots.append(Spot(first, len(lines) - 1, one.url, one.title))
        lines.append("")
    return Page(
        url="",
        title=f'Results for "{title_of(query)}"',
        lines=tuple(lines[:-1]),
        links=tuple([one.url for one in results]),
        spots=tuple(spots),
    )
