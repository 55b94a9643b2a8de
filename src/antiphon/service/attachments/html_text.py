"""The text of HTML: the title, headings with the marks of Markdown, paragraphs, list items and table rows as lines.

Scripts, styles and navigation are left out. Incomplete markup is read as far as possible, like browsers do.
"""

import re
from html.parser import HTMLParser

_CODE = ("script", "style")
_HIDDEN = ("noscript", "template", "svg", "iframe", "object", "canvas", "select", "textarea", "nav")
_CELLS = ("td", "th")
_BLOCKS = frozenset({
    *("p", "div", "section", "article", "main", "header", "footer", "aside", "table", "ul", "ol", "dl", "figure"),
    *("form", "blockquote", "fieldset", "details", "summary", "address", "figcaption", "center", "body", "pre", "hr"),
    *("title", "h1", "h2", "h3", "h4", "h5", "h6"),
})  # fmt: skip
_OPENINGS = {
    **dict.fromkeys(_BLOCKS, "\n\n"),
    **{f"h{level}": f"\n\n{'#' * level} " for level in range(1, 7)},
    **dict.fromkeys(("li", "dt", "dd"), "\n* "),
    **dict.fromkeys(("tr", "br"), "\n"),
    **dict.fromkeys(_CELLS, "\t"),
}
_SPACE = re.compile(r"[ \t\n\r\f]+")  # the whitespace of HTML, which has no no-break space


def extract_html_text(html: str) -> str:
    reader = _HtmlReader()
    reader.feed(html)
    reader.close()
    return reader.join_lines()


class _HtmlReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._hidden = ""  # the outermost open element that is left out
        self._depth = 0  # open elements of its name
        self._hidden_start = 0  # its first piece
        self._pre_depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN and not self._hidden:
            self._hidden, self._hidden_start = tag, len(self._pieces)
        self._depth += tag == self._hidden
        self._pre_depth += tag == "pre"
        is_first_cell = tag in _CELLS and self._pieces[-1:] == ["\n"]
        self._add("" if is_first_cell else _OPENINGS.get(tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Elements without content, such as <br/>."""
        self._add(_OPENINGS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._add("\n\n" if tag in _BLOCKS else "")
        self._pre_depth -= tag == "pre" and self._pre_depth > 0
        if tag == self._hidden:
            self._depth -= 1
            if not self._depth:  # an element that never ends is shown
                del self._pieces[self._hidden_start :]
                self._hidden = ""

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in _CODE:
            return
        if not self._pre_depth:
            data = _SPACE.sub(" ", data)
            if not self._pieces or self._pieces[-1][-1].isspace():
                data = data.lstrip(" ")
        self._add(data)

    def join_lines(self) -> str:
        """Return the text without spaces at the ends of lines, and with at most one empty line between two others."""
        lines: list[str] = []
        for line in "".join(self._pieces).split("\n"):
            line = line.rstrip(" \t")
            if line or (lines and lines[-1]):
                lines.append(line)
        return "\n".join(lines).rstrip("\n")

    def _add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
