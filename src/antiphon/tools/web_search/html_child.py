"""Child process that reads one HTML page from stdin and writes its text as JSON to stdout.

The text is trafilatura's main content, or the complete body if there is none. Links are written as markers in the text,
with their URLs by number. Time and memory are limited by the operating system. Exceptions terminate the process.
"""

import json
import sys
from typing import Any
from urllib.parse import urldefrag, urljoin

from lxml.etree import LxmlError, iterwalk  # type: ignore[import-untyped] # lxml has no type stubs
from trafilatura import bare_extraction, load_html

from antiphon.child_limits import limit_resources

_MAX_LINKS = 500
_MAX_URL_LENGTH = 4096
_SHORT_TEXT = 200  # below this many characters the main content may be incomplete
_REPLACEMENTS = str.maketrans({"【": "〔", "】": "〕", "†": "‡", "\0": None})

# Tags of HTML, and of trafilatura's output.
_HIDDEN = {
    "script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "select", "textarea", "title",
}  # fmt: skip
_BLOCKS = {
    "p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "table", "list", "ul", "ol", "dl",
    "figure", "form", "fieldset", "details", "summary", "address", "figcaption", "center", "body",
}  # fmt: skip
_CELLS = {"cell", "td", "th"}
_QUOTES = {"quote", "blockquote"}
_PREFIXES = {
    **dict.fromkeys(("item", "li", "dt", "dd"), "\n* "),
    **dict.fromkeys(("row", "tr", "lb", "br", "hr"), "\n"),
    **dict.fromkeys(_QUOTES, "\n\n> "),
}
_ELEMENT_STARTS = ("\n* ", "\n\n> ", " | ")  # as `_start_element` writes them
_LINK_ATTRIBUTES = {"ref": "target", "a": "href"}


def main() -> None:
    url, charset, characters, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    limit_resources(seconds)
    body = sys.stdin.buffer.read()
    try:
        result = _extract(body.decode(charset, "replace") if charset else body, url, characters)
    except LxmlError:
        result = {}  # not an HTML page
    sys.stdout.write(json.dumps(result))


def _extract(page: str | bytes, url: str, characters: int) -> dict[str, Any]:
    tree, copy = load_html(page), load_html(page)
    if tree is None or copy is None:
        return {}
    for root in (tree, copy):  # trafilatura would resolve all links against the root of the site
        root.make_links_absolute(url, handle_failures="ignore")
    title = "".join(tree.xpath("string((//title)[1])"))
    document = bare_extraction(copy, url=url, include_links=True, include_tables=True, include_comments=False,
                           include_formatting=True, favor_recall=True)  # fmt: skip
    extracted = _TextExtractor(url).extract(getattr(document, "body", None))
    if len(extracted.text) < _SHORT_TEXT:
        full = _TextExtractor(url).extract(tree.find("body") if tree.find("body") is not None else tree)
        extracted = full if len(full.text) > len(extracted.text) else extracted
    return {"title": _escape_markers(title), "text": extracted.text[:characters], "links": extracted.links}


def _escape_markers(text: str) -> str:
    return text.translate(_REPLACEMENTS).encode("utf-8", "replace").decode()


class _TextExtractor:
    """Extracts the text of a tree in one pass without recursion."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._page = urldefrag(url)[0]
        self._pieces: list[str] = []
        self._code_depth = 0  # open code elements
        self._cells = 0  # cells of the open row so far
        self._link_ends: list[str] = []  # closing texts of the open links
        self._link_numbers: dict[str, int] = {}
        self.links: list[str] = []
        self.text = ""

    def extract(self, root: Any) -> "_TextExtractor":
        walk: Any = () if root is None else iterwalk(root, events=("start", "end", "comment", "pi"))
        for event, element in walk:
            is_shown = isinstance(element.tag, str) and element.tag not in _HIDDEN
            if event == "start" and is_shown:
                self._start_element(element)
                self._add_text(element.text)
            elif event == "start":
                walk.skip_subtree()
            else:
                if is_shown:
                    self._end_element(element)
                self._add_text(element.tail if element is not root else None)
        self.text = _tidy_lines("".join(self._pieces))
        return self

    def _add_text(self, text: str | None) -> None:
        if not text:
            return
        text = _escape_markers(text)
        if not self._code_depth:
            space = " " if text[:1].isspace() else "", " " if text[-1:].isspace() else ""
            collapsed = " ".join(text.split())
            text = f"{space[0]}{collapsed}{space[1]}" if collapsed else " "
        self._pieces.append(text)

    def _start_element(self, element: Any) -> None:
        tag, put = element.tag, self._pieces.append
        if _is_heading(tag):
            level = (element.get("rend") or tag)[-1:]
            put("\n\n" + "#" * (int(level) if level.isdigit() else 2) + " ")
        elif tag in _PREFIXES:
            put(_PREFIXES[tag])
            self._cells = 0 if tag in ("row", "tr") else self._cells
        elif tag in _CELLS:
            put(" | " if self._cells else "")
            self._cells += 1
        elif tag in _LINK_ATTRIBUTES:
            self._start_link(element.get(_LINK_ATTRIBUTES[tag]))
        elif tag in _BLOCKS:
            self._start_paragraph()
        elif tag in ("code", "pre"):
            put("" if self._code_depth else "\n\n" if tag == "pre" or "\n" in "".join(element.itertext()) else "`")
            self._code_depth += 1

    def _end_element(self, element: Any) -> None:
        tag, put = element.tag, self._pieces.append
        if tag in _LINK_ATTRIBUTES:
            link_end = self._link_ends.pop()
            if link_end and self._pieces[-1].startswith("【"):
                self._pieces.pop()  # a link without text
            else:
                put(link_end)
        elif tag in ("code", "pre"):
            self._code_depth -= 1
            put("" if self._code_depth else "\n\n" if tag == "pre" or "\n" in "".join(element.itertext()) else "`")
        elif _is_heading(tag) or tag in _BLOCKS | _QUOTES:
            put("\n\n")

    def _start_paragraph(self) -> None:
        """Begin a paragraph, unless it is the first one of an item, a quotation or a cell."""
        while self._pieces and self._pieces[-1].isspace() and "\n" not in self._pieces[-1]:
            self._pieces.pop()
        if self._pieces and not self._pieces[-1].endswith(_ELEMENT_STARTS):
            self._pieces.append("\n\n")

    def _start_link(self, target: str | None) -> None:
        url = self._resolve_url(target or "")
        if not url or (url not in self._link_numbers and len(self.links) >= _MAX_LINKS):
            self._link_ends.append("")
            return
        if url not in self._link_numbers:
            self._link_numbers[url] = len(self.links)
            self.links.append(url)
        self._pieces.append(f"【{self._link_numbers[url]}†")
        self._link_ends.append(f"†{_display_host(url)}】")

    def _resolve_url(self, target: str) -> str:
        """Return the absolute URL; "" if the target is not another page."""
        try:
            url = urljoin(self._url, target.strip())
            page = urldefrag(url)[0]
        except ValueError:
            return ""
        is_valid = page.startswith(("http://", "https://")) and len(page) <= _MAX_URL_LENGTH and page != self._page
        return _escape_markers(page) if is_valid and page.isprintable() and " " not in page else ""


def _is_heading(tag: str) -> bool:
    return tag == "head" or (len(tag) == 2 and tag[0] == "h" and tag[1].isdigit())


def _tidy_lines(text: str) -> str:
    """Remove whitespace at the ends of lines, and all but one empty line between paragraphs."""
    lines: list[str] = []
    for line in text.split("\n"):
        stripped = line.rstrip() if line[:4] == "    " else line.strip()
        if stripped or (lines and lines[-1]):
            lines.append(stripped)
    return "\n".join(lines).strip()


def _display_host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0].removeprefix("www.")


if __name__ == "__main__":
    main()
