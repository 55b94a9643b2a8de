"""The pages that were shown to the model in one response, by cursor.

A cursor is assigned when a call begins, so that concurrent calls get theirs in the order in which they were made. A
page is fetched once.
"""

from antiphon.errors import BadRequest, FetchFailed, InvalidValue
from antiphon.tools.web_search.page_view import WebPage, display_host, parse_rendered


class ResponsePages:
    """The pages of one response."""

    def __init__(self, max_pages: int, max_characters: int) -> None:
        self._max_pages = max_pages
        self._remaining_characters = max_characters
        self._reserved = 0
        self._pages: dict[int, WebPage] = {}
        self._cursors: dict[str, int] = {}  # cursors by URL
        self._current = -1  # cursor of the page shown last

    def __bool__(self) -> bool:
        return bool(self._pages)

    def reserve(self) -> int:
        if self._reserved >= self._max_pages:
            raise BadRequest(f"No more than {self._max_pages} pages can be looked at for one answer.")
        self._reserved += 1
        return self._reserved - 1

    def add(self, cursor: int, page: WebPage, *urls: str) -> None:
        """Add a page. `urls`: the URLs under which it was opened."""
        if not page.lines:
            raise FetchFailed(f"{page.url[:200]} holds no text that can be read here.")
        self._remaining_characters -= page.characters
        if self._remaining_characters < 0:
            raise BadRequest("There is no room for another page in this answer: too much was read already.")
        self._pages[cursor] = page
        self._current = cursor
        for url in urls:
            self._cursors.setdefault(url, cursor)

    def find_cursor(self, url: str) -> int | None:
        return self._cursors.get(url)

    def restore(self, output: str) -> None:
        """Restore a page that another server has shown; only its rendered output is available."""
        cursor, page = parse_rendered(output)
        if page is not None:
            self._pages.setdefault(cursor, page)
            self._current = cursor
        self._reserved = max(self._reserved, cursor + 1)

    def get(self, cursor: int) -> WebPage | None:
        return self._pages.get(cursor)

    def require(self, cursor: int | None) -> tuple[int, WebPage]:
        """Return cursor and page; raises InvalidValue if the page or its text is not available."""
        resolved, page = self._resolve(cursor)
        if not page.lines:
            raise InvalidValue(f"The page [{resolved}] is not at hand any more. Open it again, by its URL.")
        return resolved, page

    def _resolve(self, cursor: int | None) -> tuple[int, WebPage]:
        """Resolve a cursor; None and -1 (gpt-oss) mean the last page."""
        resolved = self._current if cursor is None or cursor < 0 else cursor
        if resolved not in self._pages:
            raise InvalidValue("No page was opened yet." if resolved < 0 else f"There is no page [{resolved}].")
        return resolved, self._pages[resolved]

    def select(self, cursor: int) -> None:
        self._current = cursor

    def get_link(self, cursor: int | None, number: int) -> str:
        resolved, page = self._resolve(cursor)
        if number >= len(page.links):
            raise InvalidValue(f"There is no link {number} on the page [{resolved}].")
        return page.links[number]

    def find_title(self, url: str) -> str:
        """Return the title of a URL on a result page, or ""."""
        positions = [position for page in self._pages.values() for position in page.positions if position.url == url]
        return positions[0].title if positions else ""

    def find_linked(self, number: int, host: str) -> tuple[str, str] | None:
        """Return URL and title of a link that was shown with this number and host, most recent page first."""
        for page in reversed(self._pages.values()):
            url = page.links[number] if number < len(page.links) else ""
            if url and display_host(url) == host:
                titles = [position.title for position in page.positions if position.url == url]
                return url, titles[0] if titles else ""
        return None
