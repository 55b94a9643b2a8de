"""Tests `service/attachments/office_text.py`."""

from io import BytesIO
from zipfile import ZipFile

import pytest

from antiphon.service.attachments import office_text
from antiphon.service.attachments.office_text import Section, UnreadableDocument, extract_office_text
from tests.support.office_files import archive, docx, paragraph, pptx, xlsx

TABLE = (
    f"<w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc><w:tc>{paragraph('b')}</w:tc></w:tr>"
    f"<w:tr><w:tc>{paragraph('c')}</w:tc><w:tc>{paragraph('')}</w:tc></w:tr></w:tbl>"
)
ENTITY_BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><x>&b;</x>'


def extract(body: bytes) -> list[Section]:
    with ZipFile(BytesIO(body)) as one:
        return [*extract_office_text(one)]


def test_paragraphs_of_a_word_file_are_lines_and_runs_are_joined() -> None:
    content = (
        paragraph("Grö", "ße") + '<w:p><w:r><w:t xml:space="preserve"> x</w:t><w:tab/><w:t>y</w:t><w:br/></w:r></w:p>'
    )
    assert extract(docx(content)) == [("", "Größe\n x\ty\n\n")]


def test_rows_of_a_table_are_lines_and_cells_are_separated_by_tabs() -> None:
    assert extract(docx(paragraph("before") + TABLE + paragraph("after"))) == [("", "before\na\tb\t\nc\t\t\nafter\n")]


def test_only_text_elements_of_a_word_file_count() -> None:
    assert extract(docx("<w:p><w:instrText>PAGE</w:instrText><w:del><w:delText>old</w:delText></w:del></w:p>")) == [
        ("", "\n")
    ]


def test_footnotes_and_endnotes_follow_the_text() -> None:
    body = docx(paragraph("text"), footnotes=paragraph("foot"), endnotes=paragraph("end"))
    assert extract(body) == [("", "text\n"), ("", "foot\n"), ("", "end\n")]


def test_slides_come_in_their_order_with_their_notes() -> None:
    body = pptx({"s1": "first file", "s2": "second file"}, ["s2", "s1"], {"s1": "remember"})
    assert extract(body) == [
        ("slide 1", "second file\n"),
        ("slide 2", "first file\n"),
        ("notes of slide 2", "remember\n"),
    ]


def test_rows_of_a_sheet_are_lines_with_cells_in_their_columns() -> None:
    rows = (
        '<row><c r="A1" t="s"><v>1</v></c><c r="C1"><v>1.5</v></c></row><row/>'
        '<row><c r="B3" t="inlineStr"><is><t>in</t></is></c><c t="b"><v>1</v></c></row>'
    )
    assert extract(xlsx({"Täbelle": rows, "empty": ""}, ["zero", "one"])) == [
        ("sheet Täbelle", "one\t\t1.5\n\tin\t1"),
        ("sheet empty", ""),
    ]


def test_a_cell_far_away_adds_few_tabs() -> None:
    assert len(extract(xlsx({"s": '<row><c r="XFD1"><v>1</v></c></row>'}, []))[0][1]) < 100


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (archive({"a.txt": "text"}), "archive"),
        (archive({"word/document.xml": "<w:document"}), "broken"),
        (archive({"word/document.xml": ENTITY_BOMB}), "broken"),
        (archive({"word/document.xml": ENTITY_BOMB.encode("utf-16")}), "broken"),
        (xlsx({"s": '<row><c t="s"><v>7</v></c></row>'}, ["only one"]), "broken"),
        (xlsx({"s": '<row><c t="s"><v>x</v></c></row>'}, ["only one"]), "broken"),
    ],
)
def test_what_is_no_document_is_rejected_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        extract(body)


def test_an_archive_that_is_too_large_unpacked_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office_text, "MAX_BYTES", 1000)
    assert extract(docx(paragraph("short")))
    with pytest.raises(UnreadableDocument, match="size"):
        extract(docx(paragraph("x" * 1000)))
    monkeypatch.setattr(office_text, "MAX_FILES", 1)
    with pytest.raises(UnreadableDocument, match="size"):
        extract(docx(paragraph("x"), footnotes=""))


def test_a_target_outside_of_the_archive_is_ignored() -> None:
    body = pptx({"s1": "text"}, ["s1", "s2"])
    assert extract(body) == [("slide 1", "text\n")]
