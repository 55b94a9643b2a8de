"""The child that reads one HTML page from stdin and says its text as JSON on stdout: what matters in it, by
trafilatura, or all of it if that is nothing; links as marks in the text, and their URLs by number.

It runs by itself, with bounds on time and memory that the system keeps. Whatever is raised is its end.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urldefrag, urljoin

from lxml.etree import LxmlError  # type: ignore[import-untyped] # it comes without types
from trafilatura import bare_extraction, load_html

_MEMORY = 1024 * 1024 * 1024
_MOST_LINKS = 500
_LONGEST_URL = 4096
_SHORT = 200  # characters of a text that is perhaps not all that matters
_CHANGED = str.maketrans({"【": "〔", "】": "〕", "†": "‡", "\0": None})

# Tags of HTML, and of what trafilatura makes of it.
_HIDDEN = {
    "script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "select", "textarea", "title",
}  # fmt: skip
_APART = {
    "p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "table", "list", "ul", "ol", "dl",
    "figure", "form", "fieldset", "details", "summary", "address", "figcaption", "center", "body",
}  # fmt: skip
_ITEMS = {"item", "li", "dt", "dd"}
_ROWS = {"row", "tr"}
_CELLS = {"cell", "td", "th"}
_BREAKS = {"lb", "br", "hr"}
_QUOTES = {"quote", "blockquote"}
_BEGINNINGS = ("\n* ", "\n\n> ", " | ")  # as `_start` writes them
_LINKS = {"ref": "target", "a": "href"}


def main() -> None:
    url, charset, characters, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    _bound(seconds)
    body = sys.stdin.buffer.read()
    try:
        told = _read(body.decode(charset, "replace") if charset else body, url, characters)
    except LxmlError:
        told = {}  # it is no page
    sys.stdout.write(json.dumps(told))


def _bound(seconds: int) -> None:
    os.nice(10)
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not every system keeps every bound
            resource.setrlimit(kind, (most, most))


def _read(page: str | bytes, url: str, characters: int) -> dict[str, Any]:
    tree, again = load_html(page), load_html(page)
    if tree is None or again is None:
        return {}
    for one in (tree, again):  # trafilatura takes all links for links of the site's root
        one.make_links_absolute(url, handle_failures="ignore")
    title = "".join(tree.xpath("string((//title)[1])"))
    made = bare_extraction(again, url=url, include_links=True, include_tables=True, include_comments=False,
                           include_formatting=True, favor_recall=True)  # fmt: skip
    told = _Text(url).of(getattr(made, "body", None))
    if len(told.text) < _SHORT:
        whole = _Text(url).of(tree.find("body") if tree.find("body") is not None else tree)
        told = whole if len(whole.text) > len(told.text) else told
    return {"title": _plain(title), "text": told.text[:characters], "links": told.links}


def _plain(text: str) -> str:
    return text.translate(_CHANGED).encode("utf-8", "replace").decode()


class _Text:
    """Of a tree, in one walk without recursion."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._page = urldefrag(url)[0]
        self._pieces: list[str] = []
        self._verbatim = 0  # elements of code that are open
        self._cells = 0  # of the row that is open
        self._marks: list[str] = []  # how the links that are open end
        self._numbers: dict[str, int] = {}
        self.links: list[str] = []
        self.text = ""

    def of(self, root: Any) -> "_Text":
        if root is not None:
            for event, element in _walk(root):
                if event == "start":
                    self._start(element)
                elif event == "end":
                    self._end(element)
                else:
                    self._say(element)
        self.text = _tidy("".join(self._pieces))
        return self

    def _say(self, text: str) -> None:
        text = _plain(text)
        if not self._verbatim:
            space = " " if text[:1].isspace() else "", " " if text[-1:].isspace() else ""
            bare = " ".join(text.split())
            text = f"{space[0]}{bare}{space[1]}" if bare else " "
        self._pieces.append(text)

    def _start(self, element: Any) -> None:
        tag, put = element.tag, self._pieces.append
        if tag == "head" or (len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()):
            level = (element.get("rend") or tag)[-1:]
            put("\n\n" + "#" * (int(level) if level.isdigit() else 2) + " ")
        elif tag in _ITEMS:
            put("\n* ")
        elif tag in _ROWS:
            self._cells = 0
            put("\n")
        elif tag in _CELLS:
            put(" | " if self._cells else "")
            self._cells += 1
        elif tag in _QUOTES:
            put("\n\n> ")
        elif tag in _BREAKS:
            put("\n")
        elif tag in _LINKS:
            self._link(element.get(_LINKS[tag]))
        elif tag in _APART:
            self._part()
        elif tag in ("code", "pre"):
            put("" if self._verbatim else "\n\n" if tag == "pre" or "\n" in "".join(element.itertext()) else "`")
            self._verbatim += 1

    def _end(self, element: Any) -> None:
        tag, put = element.tag, self._pieces.append
        if tag in _LINKS:
            mark = self._marks.pop()
            if mark and self._pieces[-1].startswith("【"):
                self._pieces.pop()  # a link without words
            else:
                put(mark)
        elif tag in ("code", "pre"):
            self._verbatim -= 1
            put("" if self._verbatim else "\n\n" if tag == "pre" or "\n" in "".join(element.itertext()) else "`")
        elif tag == "head" or (len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()) or tag in _APART | _QUOTES:
            put("\n\n")

    def _part(self) -> None:
        """A paragraph begins, unless it is the first of something."""
        while self._pieces and self._pieces[-1].isspace() and "\n" not in self._pieces[-1]:
            self._pieces.pop()
        if self._pieces and not self._pieces[-1].endswith(_BEGINNINGS):
            self._pieces.append("\n\n")

    def _link(self, target: str | None) -> None:
        url = self._absolute(target or "")
        if not url or (url not in self._numbers and len(self.links) >= _MOST_LINKS):
            self._marks.append("")
            return
        if url not in self._numbers:
            self._numbers[url] = len(self.links)
            self.links.append(url)
        self._pieces.append(f"【{self._numbers[url]}†")
        self._marks.append(f"†{_host(url)}】")

    def _absolute(self, target: str) -> str:
        """ "" for what leads to no other page."""
        try:
            url = urljoin(self._url, target.strip())
            page = urldefrag(url)[0]
        except ValueError:
            return ""
        fit = page.startswith(("http://", "https://")) and len(page) <= _LONGEST_URL and page != self._page
        return _plain(page) if fit and page.isprintable() and " " not in page else ""


def _walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Starts and ends of elements, and texts between them; without what nobody sees."""
    stack: list[tuple[Any, Any]] = [(root, None)]  # an element, and its children that are left
    while stack:
        element, rest = stack.pop()
        if rest is None:
            yield "start", element
            if element.text:
                yield "text", element.text
            rest = iter(element)
        child = next(rest, None)
        if child is None:
            yield "end", element
            if stack and element.tail:
                yield "text", element.tail
            continue
        stack.append((element, rest))
        if isinstance(child.tag, str) and child.tag not in _HIDDEN:
            stack.append((child, None))
        elif child.tail:
            yield "text", child.tail


def _tidy(text: str) -> str:
    """Without space at the ends of lines, and with one empty line between paragraphs."""
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line.rstrip() if line[:4] == "    " else line.strip()
        if bare or (lines and lines[-1]):
            lines.append(bare)
    return "\n".join(lines).strip()


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0].removeprefix("www.")


if __name__ == "__main__":
    main()
