"""Pages as a model reads them: numbered lines, a window at a time, and the pages of one response by their cursors.

    [3] Otters (https://otters.example/)
    **lines 0 to 40 of 212**

    L0: # Otters
    L1: Otters eat 【0†fish†fish.example】 …

A cursor is given out when a call begins, so that calls side by side get theirs in the order in which they were made. A
page that was opened once is not fetched again. Brackets of marks are ours alone: in the text of pages they are changed.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from antiphon.errors import BadRequest, FetchFailed, InvalidValue

WIDTH = 100  # characters of a line
LONGEST_TITLE = 200
_CITE = "Cite as 【{0}†L{{line}}】 or 【{0}†L{{first}}-L{{last}}】."
_HEAD = re.compile(r"\[(\d{1,6})\] ([^\n]*?)(?: \((https?://[^\s()]\S*)\))?\n")
_LINE = re.compile(r"^L(\d{1,7}): ?(.*)$", re.MULTILINE)
_RESULT = re.compile(r"【\d+†(.*)†[^†]*】")
_CHANGED = str.maketrans({"【": "〔", "】": "〕", "†": "‡", "\r": None, "\t": " ", "\0": None})


class Spot(Struct, frozen=True):
    """Lines that tell of another page."""

    first: int
    last: int
    url: str
    title: str


class Page(Struct, frozen=True, kw_only=True):
    url: str  # "" for a list of results
    title: str
    lines: tuple[str, ...]
    links: tuple[str, ...] = ()  # by their numbers
    spots: tuple[Spot, ...] = ()  # of a list of results

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines)) + sum(map(len, self.links))

    def source(self, line: int | None) -> tuple[str, str] | None:
        """URL and title of what the line is taken from. An empty line belongs to what stands above it."""
        if self.url:
            return self.url, self.title
        spots = [spot for spot in self.spots if line is None or spot.first <= line <= spot.last + 1]
        return (spots[0].url, spots[0].title) if len(spots) == 1 else None


class Pages:
    """Of one response."""

    def __init__(self, most: int, most_characters: int) -> None:
        self._most = most
        self._room = most_characters
        self._given = 0
        self._pages: dict[int, Page] = {}
        self._opened: dict[str, int] = {}  # cursors by URL
        self._current = -1  # what was shown last

    def __bool__(self) -> bool:
        return bool(self._pages)

    def reserve(self) -> int:
        if self._given >= self._most:
            raise BadRequest(f"No more than {self._most} pages can be looked at for one answer.")
        self._given += 1
        return self._given - 1

    def put(self, cursor: int, page: Page, *urls: str) -> None:
        """`urls`: by which it was opened."""
        if not page.lines:
            raise FetchFailed(f"{page.url[:200]} holds no text that can be read here.")
        self._room -= page.characters
        if self._room < 0:
            raise BadRequest("There is no room for another page in this answer: too much was read already.")
        self._pages[cursor] = page
        self._current = cursor
        for url in urls:
            self._opened.setdefault(url, cursor)

    def known(self, url: str) -> int | None:
        return self._opened.get(url)

    def recall(self, said: str) -> None:
        """A page that another server has shown, of which nothing but that is known."""
        cursor, page = remembered(said)
        if page is not None:
            self._pages.setdefault(cursor, page)
            self._current = cursor
        self._given = max(self._given, cursor + 1)

    def get(self, cursor: int) -> Page | None:
        return self._pages.get(cursor)

    def find(self, cursor: int | None) -> tuple[int, Page]:
        """The one that is meant."""
        wanted, page = self._meant(cursor)
        if not page.lines:
            raise InvalidValue(f"The page [{wanted}] is not at hand any more. Open it again, by its URL.")
        return wanted, page

    def _meant(self, cursor: int | None) -> tuple[int, Page]:
        """gpt-oss says -1 for the last."""
        wanted = self._current if cursor is None or cursor < 0 else cursor
        if wanted not in self._pages:
            raise InvalidValue("No page was opened yet." if wanted < 0 else f"There is no page [{wanted}].")
        return wanted, self._pages[wanted]

    def turn_to(self, cursor: int) -> None:
        self._current = cursor

    def link(self, cursor: int | None, number: int) -> str:
        wanted, page = self._meant(cursor)
        if number >= len(page.links):
            raise InvalidValue(f"There is no link {number} on the page [{wanted}].")
        return page.links[number]

    def titled(self, url: str) -> str:
        """What a list of results calls it."""
        spots = [spot for page in self._pages.values() for spot in page.spots if spot.url == url]
        return spots[0].title if spots else ""

    def linked(self, number: int, host: str) -> tuple[str, str] | None:
        """URL and title of a link that was shown so, on the page that was read last."""
        for page in reversed(self._pages.values()):
            url = page.links[number] if number < len(page.links) else ""
            if url and host_of(url) == host:
                titles = [spot.title for spot in page.spots if spot.url == url]
                return url, titles[0] if titles else ""
        return None


def shown(cursor: int, page: Page, loc: int, lines: int, characters: int) -> str:
    """A window of the page, at least a line of it."""
    total = len(page.lines)
    if loc >= total:
        raise InvalidValue(f"The page [{cursor}] has no line {loc}: its last one is {total - 1}.")
    picked: list[str] = []
    room = characters
    for number in range(loc, min(total, loc + lines)):
        line = f"L{number}: {page.lines[number]}"
        room -= len(line)
        if room < 0 and picked:
            break
        picked.append(line)
    last = loc + len(picked) - 1
    head = f"{_head(cursor, page)}\n**lines {loc} to {last} of {total - 1}**"
    return "\n".join([head, "", *picked, "", _CITE.format(cursor)])


def found(cursor: int, page: Page, pattern: str, around: int, characters: int) -> str:
    """All lines around what was found, up to a bound."""
    wanted = " ".join(pattern.casefold().split())
    hits = [*_hits(page.lines, wanted)] if wanted else []
    if not hits:
        return f"{_head(cursor, page)}\nNothing in it reads {pattern!r}."
    picked: list[str] = []
    room, after, told = characters, 0, 0
    for hit in hits:
        for number in range(max(after, hit - around), min(len(page.lines), hit + around + 1)):
            if picked and number > after:
                picked.append("…")
            line = f"L{number}: {page.lines[number]}"
            picked.append(line)
            after, room = number + 1, room - len(line)
        told += 1
        if room < 0:
            break
    more = "" if told == len(hits) else f", of which the first {told} are shown"
    times = "once" if len(hits) == 1 else f"{len(hits)} times"
    head = f"{_head(cursor, page)}\n**{pattern!r} was found {times}{more}**"
    return "\n".join([head, "", *picked, "", _CITE.format(cursor)])


def _hits(lines: Sequence[str], wanted: str) -> Iterator[int]:
    """The lines in which it begins; it may end in a later one."""
    folded = [(number, " ".join(line.casefold().split())) for number, line in enumerate(lines)]
    told = [(number, line) for number, line in folded if line]
    begins = [*accumulate([len(line) + 1 for _, line in told], initial=0)]
    text = " ".join([line for _, line in told])
    at = text.find(wanted)
    while at >= 0:
        place = bisect_right(begins, at) - 1
        yield told[place][0]
        at = text.find(wanted, begins[place + 1])


def remembered(said: str) -> tuple[int, Page | None]:
    """The reverse of `shown` and `found`: where it was from, without its lines. -1 for what shows no page."""
    head = _HEAD.match(said)
    if head is None:
        return -1, None
    cursor, title, url = int(head[1]), head[2], head[3] or ""
    if url:
        return cursor, Page(url=url, title=title, lines=())
    lines = _LINE.findall(said)
    spots = [_spot(lines, number) for number, (_, text) in enumerate(lines) if _RESULT.fullmatch(text)]
    links = tuple([spot.url for spot in spots])
    return cursor, Page(url="", title=title, lines=(), links=links, spots=tuple(spots))


def _spot(lines: Sequence[tuple[str, str]], number: int) -> Spot:
    """Of the result that begins in this line; an empty one follows its last."""
    title = _RESULT.fullmatch(lines[number][1])
    last = next((at for at in range(number, len(lines)) if not lines[at][1]), len(lines)) - 1
    url = lines[number + 1][1] if number < last else ""
    return Spot(int(lines[number][0]), int(lines[last][0]), url, title[1] if title else "")


def _head(cursor: int, page: Page) -> str:
    return f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url else "")


def plain(text: str) -> str:
    """Untrusted text without what could be taken for a mark, and without halves of characters."""
    return text.translate(_CHANGED).encode("utf-8", "replace").decode()


def title_of(text: str, otherwise: str = "") -> str:
    line = " ".join(plain(text).split())
    return (line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1] + "…") or otherwise


def host_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0].removeprefix("www.")


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Lines of at most so many characters, cut at spaces where there are some. At most one empty line in a row."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if paragraph and not paragraph.isspace():
            lines += _cut(paragraph.rstrip(), width)
        elif lines and lines[-1]:
            lines.append("")
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _cut(line: str, width: int) -> Iterator[str]:
    begin, end = 0, len(line)
    while end - begin > width:
        at = line.rfind(" ", begin + 1, begin + width + 1)
        at = at if at > 0 else begin + width
        yield line[begin:at].rstrip()
        begin = at + 1 if line[at] == " " else at
    yield line[begin:]
