"""Office documents, as small as the programs accept them."""

from collections.abc import Mapping
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_A = "http://schemas.openxmlformats.org/drawingml/2006/main"
_P = "http://schemas.openxmlformats.org/presentationml/2006/main"
_S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def archive(files: Mapping[str, str | bytes]) -> bytes:
    body = BytesIO()
    with ZipFile(body, "w", ZIP_DEFLATED) as one:
        for name, content in files.items():
            one.writestr(name, content)
    return body.getvalue()


def docx(content: str, **others: str) -> bytes:
    """A Word file. `content`: the XML of its body; `others`: that of `footnotes` and `endnotes`."""
    files: dict[str, str | bytes] = {
        "word/document.xml": f'<w:document xmlns:w="{_W}"><w:body>{content}</w:body></w:document>'
    }
    files |= {f"word/{name}.xml": f'<w:{name} xmlns:w="{_W}">{text}</w:{name}>' for name, text in others.items()}
    return archive(files)


def paragraph(*runs: str) -> str:
    """A paragraph of Word, with one run for each text."""
    return "<w:p>" + "".join(f"<w:r><w:t>{run}</w:t></w:r>" for run in runs) + "</w:p>"


def relationships(targets: Mapping[str, str], kind: str) -> str:
    entries = "".join(f'<Relationship Id="{key}" Type="{_R}/{kind}" Target="{to}"/>' for key, to in targets.items())
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{entries}</Relationships>'
    )


def slide(text: str) -> str:
    return f'<p:sld xmlns:p="{_P}" xmlns:a="{_A}"><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>'


def pptx(slides: Mapping[str, str], order: list[str], notes: Mapping[str, str] = {}) -> bytes:
    """A PowerPoint file. `slides` and `notes`: texts by the name of the slide; `order`: the order of the slides."""
    ids = "".join(f'<p:sldId id="{number}" r:id="{name}"/>' for number, name in enumerate(order, 256))
    presentation = f'<p:presentation xmlns:p="{_P}" xmlns:r="{_R}"><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>'
    targets = {name: f"slides/{name}.xml" for name in slides}
    files: dict[str, str | bytes] = {
        "ppt/presentation.xml": presentation,
        "ppt/_rels/presentation.xml.rels": relationships(targets, "slide"),
        **{f"ppt/slides/{name}.xml": slide(text) for name, text in slides.items()},
        **{f"ppt/notesSlides/{name}.xml": slide(text) for name, text in notes.items()},
        **{
            f"ppt/slides/_rels/{name}.xml.rels": relationships({"rId1": f"../notesSlides/{name}.xml"}, "notesSlide")
            for name in notes
        },
    }
    return archive(files)


def xlsx(sheets: Mapping[str, str], strings: list[str]) -> bytes:
    """An Excel file. `sheets`: the XML of the rows by the name of the sheet; `strings`: those that cells refer to."""
    listed = "".join(f'<sheet name="{name}" sheetId="1" r:id="r{at}"/>' for at, name in enumerate(sheets))
    shared = "".join(f"<si><t>{text}</t></si>" for text in strings)
    files: dict[str, str | bytes] = {
        "xl/workbook.xml": f'<workbook xmlns="{_S}" xmlns:r="{_R}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relationships(
            {f"r{at}": f"/xl/worksheets/s{at}.xml" for at in range(len(sheets))}, "worksheet"
        ),
        "xl/sharedStrings.xml": f'<sst xmlns="{_S}">{shared}</sst>',
    }
    for at, rows in enumerate(sheets.values()):
        files[f"xl/worksheets/s{at}.xml"] = f'<worksheet xmlns="{_S}"><sheetData>{rows}</sheetData></worksheet>'
    return archive(files)
