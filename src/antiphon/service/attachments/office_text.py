"""The text of office documents (Office Open XML, ECMA-376): Word, PowerPoint and Excel files, which are ZIP archives of
XML files.

    docx    paragraphs and table rows as lines, then footnotes and endnotes
    pptx    slides in their order, each with its notes
    xlsx    sheets in their order, rows as lines, cells separated by tabs

Archives are bounded before they are read, and document type declarations, by which a small XML file can expand without
bound, are rejected: no office program writes one.
"""

import posixpath
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from xml.parsers import expat
from zipfile import BadZipFile, ZipFile

MAX_BYTES = 100 * 1024 * 1024  # of all files of an archive, uncompressed
MAX_FILES = 10_000
_MAX_GAP = 64  # empty cells between two others that become tabs
_READ_BYTES = 64 * 1024
_PARSE_ERRORS = (expat.ExpatError, BadZipFile, zlib.error, LookupError, ValueError, EOFError, NotImplementedError)
_CELL = re.compile(r"([A-Z]{1,3})\d+")

Attributes = Mapping[str, str]
Section = tuple[str, str]  # title, which may be empty, and text


class UnreadableDocument(Exception):
    """The document cannot be read; the argument is the reason: `archive`, `size` or `broken`."""


def extract_office_text(archive: ZipFile) -> Iterator[Section]:
    """Yield the text of a document in sections. Raises UnreadableDocument."""
    entries = archive.infolist()
    if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise UnreadableDocument("size")
    names = {entry.filename for entry in entries}
    for main, extract in _FORMATS.items():
        if main in names:
            try:
                yield from extract(_Package(archive, names))
            except _PARSE_ERRORS:
                raise UnreadableDocument("broken") from None
            return
    raise UnreadableDocument("archive")


class _Package:
    """The XML files of a document, and the relationships between them (ECMA-376 Part 2)."""

    def __init__(self, archive: ZipFile, names: set[str]) -> None:
        self._archive = archive
        self._names = names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def parse(
        self,
        name: str,
        start: Callable[[str, Attributes], None] | None = None,
        end: Callable[[str], None] | None = None,
        text: Callable[[str], None] | None = None,
    ) -> None:
        """Parse an XML file. The callbacks receive names of elements without their namespaces."""
        parser = expat.ParserCreate(namespace_separator="}")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _reject_doctype
        if start is not None:
            parser.StartElementHandler = lambda tag, attributes: start(_local(tag), attributes)
        if end is not None:
            parser.EndElementHandler = lambda tag: end(_local(tag))
        if text is not None:
            parser.CharacterDataHandler = text
        with self._archive.open(name) as file:
            while piece := file.read(_READ_BYTES):
                parser.Parse(piece)
            parser.Parse(b"", True)

    def find_targets(self, name: str, kind: str = "") -> dict[str, str]:
        """Return the files that a file refers to, by the id of the relationship; only those of one kind, if given."""
        folder, base = posixpath.split(name)
        relationships = f"{folder}/_rels/{base}.rels"
        targets: dict[str, str] = {}

        def add(tag: str, attributes: Attributes) -> None:
            if tag == "Relationship" and attributes.get("Type", "").endswith(kind):
                target = posixpath.normpath(posixpath.join("/", folder, attributes.get("Target", "")))
                targets[attributes.get("Id", "")] = target.lstrip("/")

        if relationships in self:
            self.parse(relationships, add)
        return {key: target for key, target in targets.items() if target in self}

    def list_parts(self, name: str, element: str) -> list[tuple[str, str]]:
        """Return name and file of the parts that elements of a file refer to, in their order."""
        found: list[tuple[str, str]] = []
        targets = self.find_targets(name)

        def add(tag: str, attributes: Attributes) -> None:
            reference = next((value for key, value in attributes.items() if key.endswith("relationships}id")), "")
            if tag == element and reference in targets:
                found.append((attributes.get("name", ""), targets[reference]))

        self.parse(name, add)
        return found


def _extract_word(package: _Package) -> Iterator[Section]:
    for name in ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml"):
        if name in package:
            yield "", _read_paragraphs(package, name)


def _extract_powerpoint(package: _Package) -> Iterator[Section]:
    for number, (_, slide) in enumerate(package.list_parts("ppt/presentation.xml", "sldId"), 1):
        yield f"slide {number}", _read_paragraphs(package, slide)
        for notes in package.find_targets(slide, "/notesSlide").values():
            yield f"notes of slide {number}", _read_paragraphs(package, notes)


def _extract_excel(package: _Package) -> Iterator[Section]:
    strings = _read_shared_strings(package)
    for name, sheet in package.list_parts("xl/workbook.xml", "sheet"):
        yield f"sheet {name}", _SheetReader(strings).read(package, sheet)


_FORMATS: Mapping[str, Callable[[_Package], Iterator[Section]]] = {
    "word/document.xml": _extract_word,
    "ppt/presentation.xml": _extract_powerpoint,
    "xl/workbook.xml": _extract_excel,
}
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n"}  # elements that stand for a character
_ENDS = {"p": "\n", "tc": "\t", "tr": "\n"}  # what ends a paragraph, a cell and a row


def _read_paragraphs(package: _Package, name: str) -> str:
    """Read the text of paragraphs and tables, which Word and PowerPoint write with the same element names."""
    pieces: list[str] = []
    in_text = 0

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal in_text
        in_text += tag == "t"
        pieces.append(_BREAKS.get(tag, ""))

    def end(tag: str) -> None:
        nonlocal in_text
        in_text -= tag == "t"
        if tag in ("tc", "tr") and pieces and pieces[-1] == "\n":
            pieces.pop()  # a cell ends with a paragraph
        pieces.append(_ENDS.get(tag, ""))

    package.parse(name, start, end, lambda text: pieces.append(text if in_text else ""))
    return "".join(pieces)


def _read_shared_strings(package: _Package) -> list[str]:
    """Return the strings that cells refer to by their number."""
    strings: list[str] = []
    if "xl/sharedStrings.xml" not in package:
        return strings
    in_text = False

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal in_text
        in_text = tag == "t"
        if tag == "si":
            strings.append("")

    def end(tag: str) -> None:
        nonlocal in_text
        in_text = False

    def add(text: str) -> None:
        if in_text and strings:
            strings[-1] += text

    package.parse("xl/sharedStrings.xml", start, end, add)
    return strings


class _SheetReader:
    """Reads one sheet: the values of its cells as they are stored."""

    def __init__(self, strings: list[str]) -> None:
        self._strings = strings
        self._lines: list[str] = []
        self._cells: list[str] = []
        self._value = ""
        self._is_shared = self._in_value = False
        self._column = 0

    def read(self, package: _Package, name: str) -> str:
        package.parse(name, self._start, self._end, self._add)
        return "\n".join(self._lines)

    def _start(self, tag: str, attributes: Attributes) -> None:
        if tag == "row":
            self._cells = []
        elif tag == "c":
            self._value, self._is_shared = "", attributes.get("t") == "s"
            found = _CELL.fullmatch(attributes.get("r", ""))
            self._column = len(self._cells) if found is None else _column_number(found[1])
        self._in_value = tag in ("v", "t")

    def _add(self, text: str) -> None:
        if self._in_value:
            self._value += text

    def _end(self, tag: str) -> None:
        self._in_value = False
        if tag == "c":
            self._cells += [""] * min(self._column - len(self._cells), _MAX_GAP)
            self._cells.append(self._strings[int(self._value)] if self._is_shared and self._value else self._value)
        elif tag == "row" and any(self._cells):
            self._lines.append("\t".join(self._cells))


def _column_number(letters: str) -> int:
    """Return the number of a column: A is 0, AA is 26."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _reject_doctype(*declaration: object) -> None:
    raise ValueError("document type declarations are not allowed")
