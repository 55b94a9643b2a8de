"""Pages as they are shown to a model: as windows of numbered lines.

    [3] Otters (https://otters.example/)
    **lines 0 to 40 of 212**

    L0: # Otters
    L1: Otters eat 【0†fish†fish.example】 …

The number at the start is the page's cursor. The model cites lines with it. A cursor is assigned when a call begins, so
that concurrent calls get theirs in the order in which they were made. A page is fetched once per response.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from antiphon.errors import BadRequest, FetchFailed, InvalidValue
from antiphon.tools.untrusted_text import escape_markers

LINE_WIDTH = 100  # characters
MAX_TITLE_LENGTH = 200
_CITE = "Cite as 【{0}†L{{line}}】 or 【{0}†L{{first}}-L{{last}}】."
_HEAD_PATTERN = re.compile(r"\[(\d{1,6})\] ([^\n]*?)(?: \((https?://[^\s()]\S*)\))?\n")
_LINE_PATTERN = re.compile(r"^L(\d{1,7}): ?(.*)$", re.MULTILINE)
_RESULT_PATTERN = re.compile(r"【\d+†(.*)†[^†]*】")


class PagePosition(Struct, frozen=True):
    """Lines of a result page that describe one result."""

    first: int
    last: int
    url: str
    title: str


class WebPage(Struct, frozen=True, kw_only=True):
    """A page as it is shown to the model."""

    url: str  # "" for a result page
    title: str
    lines: tuple[str, ...]
    links: tuple[str, ...] = ()  # URLs by link number
    positions: tuple[PagePosition, ...] = ()  # only on a result page

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines)) + sum(map(len, self.links))

    def find_source(self, line: int | None) -> tuple[str, str] | None:
        """Return URL and title of the source of a line. An empty line belongs to the result above it."""
        if self.url:
            return self.url, self.title
        positions = [
            position for position in self.positions if line is None or position.first <= line <= position.last + 1
        ]
        return (positions[0].url, positions[0].title) if len(positions) == 1 else None


def render_window(cursor: int, page: WebPage, loc: int, lines: int, characters: int) -> str:
    """Render a window of the page, at least one line."""
    total = len(page.lines)
    if loc >= total:
        raise InvalidValue(f"The page [{cursor}] has no line {loc}: its last one is {total - 1}.")
    picked: list[str] = []
    remaining = characters
    for number in range(loc, min(total, loc + lines)):
        line = f"L{number}: {page.lines[number]}"
        remaining -= len(line)
        if remaining < 0 and picked:
            break
        picked.append(line)
    return _render(cursor, page, f"lines {loc} to {loc + len(picked) - 1} of {total - 1}", picked)


def render_matches(cursor: int, page: WebPage, pattern: str, context_lines: int, characters: int) -> str:
    """Render the lines around all matches, up to a limit of characters."""
    needle = " ".join(pattern.casefold().split())
    hits = [*_find_hits(page.lines, needle)] if needle else []
    if not hits:
        return f"{_render_head(cursor, page)}\nNothing in it reads {pattern!r}."
    picked: list[str] = []
    remaining, next_line, shown_hits = characters, 0, 0
    for hit in hits:
        for number in range(max(next_line, hit - context_lines), min(len(page.lines), hit + context_lines + 1)):
            if picked and number > next_line:
                picked.append("…")
            line = f"L{number}: {page.lines[number]}"
            picked.append(line)
            next_line, remaining = number + 1, remaining - len(line)
        shown_hits += 1
        if remaining < 0:
            break
    more = "" if shown_hits == len(hits) else f", of which the first {shown_hits} are shown"
    times = "once" if len(hits) == 1 else f"{len(hits)} times"
    return _render(cursor, page, f"{pattern!r} was found {times}{more}", picked)


def _render(cursor: int, page: WebPage, note: str, lines: Sequence[str]) -> str:
    return "\n".join([_render_head(cursor, page), f"**{note}**", "", *lines, "", _CITE.format(cursor)])


def _find_hits(lines: Sequence[str], needle: str) -> Iterator[int]:
    """Yield the lines in which a match begins; it may end in a later line."""
    folded = [(number, " ".join(line.casefold().split())) for number, line in enumerate(lines)]
    nonempty = [(number, line) for number, line in folded if line]
    starts = [*accumulate([len(line) + 1 for _, line in nonempty], initial=0)]
    text = " ".join([line for _, line in nonempty])
    at = text.find(needle)
    while at >= 0:
        index = bisect_right(starts, at) - 1
        yield nonempty[index][0]
        at = text.find(needle, starts[index + 1])


def parse_rendered(output: str) -> tuple[int, WebPage | None]:
    """Parse the output of `render_window` or `render_matches` to a page without lines; the cursor is -1 for others."""
    if (head := _HEAD_PATTERN.match(output)) is None:
        return -1, None
    cursor, title, url = int(head[1]), head[2], head[3] or ""
    if url:
        return cursor, WebPage(url=url, title=title, lines=())
    lines = _LINE_PATTERN.findall(output)
    positions = [
        _parse_position(lines, number) for number, (_, text) in enumerate(lines) if _RESULT_PATTERN.fullmatch(text)
    ]
    links = tuple([position.url for position in positions])
    return cursor, WebPage(url="", title=title, lines=(), links=links, positions=tuple(positions))


def _parse_position(lines: Sequence[tuple[str, str]], number: int) -> PagePosition:
    """Parse the result that begins in this line; an empty line follows its last one."""
    title = _RESULT_PATTERN.fullmatch(lines[number][1])
    last = next((at for at in range(number, len(lines)) if not lines[at][1]), len(lines)) - 1
    url = lines[number + 1][1] if number < last else ""
    return PagePosition(int(lines[number][0]), int(lines[last][0]), url, title[1] if title else "")


def _render_head(cursor: int, page: WebPage) -> str:
    return f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url else "")


def clean_title(text: str, default: str = "") -> str:
    line = " ".join(escape_markers(text).split())
    return (line if len(line) <= MAX_TITLE_LENGTH else line[: MAX_TITLE_LENGTH - 1] + "…") or default


def display_host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0].removeprefix("www.")


def wrap_lines(text: str, width: int = LINE_WIDTH) -> list[str]:
    """Wrap text to lines of at most `width` characters, preferably at spaces, without successive empty lines."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if paragraph and not paragraph.isspace():
            lines += _wrap_line(paragraph.rstrip(), width)
        elif lines and lines[-1]:
            lines.append("")
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _wrap_line(line: str, width: int) -> Iterator[str]:
    begin, end = 0, len(line)
    while end - begin > width:
        at = line.rfind(" ", begin + 1, begin + width + 1)
        at = at if at > 0 else begin + width
        yield line[begin:at].rstrip()
        begin = at + 1 if line[at] == " " else at
    yield line[begin:]


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
