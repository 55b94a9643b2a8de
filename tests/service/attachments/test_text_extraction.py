"""Text extraction from files. HTML, PDFs and office documents are parsed in a child process, which is killed
at its timeout.

Covers `service/attachments/document_child.py`.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from antiphon.service.attachments.text_extraction import (
    ExtractionBounds,
    ExtractionFailed,
    FailureCode,
    TextExtractor,
    is_parsed,
)
from drills.bombs.files import BROKEN_PDFS, make_expanding_pdf
from tests.support.media_files import pdf, png
from tests.support.office_files import archive, docx, paragraph, pptx

pytestmark = pytest.mark.anyio
BOUNDS = ExtractionBounds(seconds=60.0)


async def extract_text(data: bytes, bounds: ExtractionBounds = BOUNDS, name: str = "a") -> str:
    async with asyncio.timeout(100):
        return await TextExtractor(bounds).extract_text(name, data)


async def expect_failure(
    data: bytes, bounds: ExtractionBounds = BOUNDS, code: FailureCode = "invalid_file", name: str = "a"
) -> str:
    with pytest.raises(ExtractionFailed) as failed:
        await extract_text(data, bounds, name)
    assert failed.value.code == code
    assert not {"0x", "Traceback", "/site-packages/"} & {*failed.value.message.split()}
    return failed.value.message


async def test_text_is_decoded_and_other_formats_are_rejected_by_name() -> None:
    assert await extract_text("Größe\n".encode("utf-16")) == "Größe\n"
    assert await extract_text(b"") == ""
    assert "input_image" in await expect_failure(png(), code="unsupported_file")
    assert "ZIP" in await expect_failure(b"PK\x03\x04" + bytes(100), code="unsupported_file")
    assert "characters" in await expect_failure(b"abcde", ExtractionBounds(characters=4))


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.md", "a.py", "a.xml", "a"])
async def test_text_formats_are_returned_as_they_are(name: str) -> None:
    text = '# "A", <b>\n\t1, 2\n'
    assert await extract_text(text.encode(), name=name) == text
    assert not is_parsed(name, text.encode())


@pytest.mark.parametrize("data", ["日本語".encode("utf-16-le"), "Größe".encode("latin-1"), bytes(range(256)) * 10])
async def test_data_in_another_encoding_are_unsupported(data: bytes) -> None:
    assert "UTF-8 or UTF-16" in await expect_failure(data, code="unsupported_file", name="a.txt")


async def test_text_that_is_too_long_in_any_encoding_is_rejected_before_it_is_decoded() -> None:
    assert "2 characters" in await expect_failure(b"\xff" * 13, ExtractionBounds(characters=2))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "start"), [("a.HTML", ""), ("a", "\n<!DOCTYPE html>"), ("a.txt", "<html>")])
async def test_html_is_recognised_by_its_name_or_its_beginning(name: str, start: str, encoding: str) -> None:
    data = f"{start}<title>Größen</title><p>1 &lt; 2<script>x()</script>".encode(encoding)
    assert is_parsed(name, data)
    assert await extract_text(data, name=name) == "Größen\n\n1 < 2"


async def test_html_is_bounded_like_other_documents() -> None:
    assert "5 characters" in await expect_failure(b"<html>Too long", ExtractionBounds(characters=5))
    assert "no text" in await expect_failure(b"<html><script>x()</script>")
    # Python's parser rejects such a declaration until 3.11.13, and takes it for a comment later and where patched.
    assert (await expect_failure(b"<html><![unknown[ x ]]>")).endswith(("cannot be read.", "may be images."))
    assert "within 0.01 seconds" in await expect_failure(b"<html>a", ExtractionBounds(seconds=0.01))


async def test_markup_that_takes_long_is_stopped() -> None:
    assert "within 1 seconds" in await expect_failure(b"<html>" + b"<br>" * 4_900_000, ExtractionBounds(seconds=1.0))


async def test_an_office_document_is_read_in_the_child_process() -> None:
    assert await extract_text(docx(paragraph("Hello"))) == "Hello\n"
    assert await extract_text(pptx({"s": "Hello"}, ["s"])) == "[slide 1]\nHello\n"
    assert "no text" in await expect_failure(docx(paragraph("")))
    assert "characters" in await expect_failure(docx(paragraph("Hello")), ExtractionBounds(characters=5))
    assert "cannot be read" in await expect_failure(archive({"word/document.xml": "<"}))
    bomb = archive({"word/document.xml": bytes(101 * 1024 * 1024)})
    assert "too large" in await expect_failure(bomb)


async def test_a_pdf_is_read_page_by_page() -> None:
    assert await extract_text(pdf("Hello page", "and (more)".replace("(", "").replace(")", ""))) == (
        "[page 1]\nHello page\n\n[page 2]\nand more"
    )


async def test_pages_and_characters_of_a_pdf_are_limited() -> None:
    bounds = ExtractionBounds(pages=2, characters=12)
    assert await extract_text(pdf("abcdef", "ghijkl"), bounds)
    assert "more than 2 pages" in await expect_failure(pdf("a", "b", "c"), bounds)
    assert "12 characters" in await expect_failure(pdf("abcdef", "ghijklm"), bounds)


async def test_a_pdf_without_text_is_rejected_instead_of_read_as_empty() -> None:
    assert "no text" in await expect_failure(pdf("", ""))


@pytest.mark.parametrize("body", BROKEN_PDFS)
async def test_a_broken_pdf_is_rejected_with_a_readable_message(body: bytes) -> None:
    assert await expect_failure(body)


async def test_a_pdf_bomb_is_rejected_without_memory_growth_in_this_process() -> None:
    bomb = make_expanding_pdf()
    before = _get_resident_bytes()
    assert await expect_failure(bomb, ExtractionBounds(seconds=8.0))
    assert _get_resident_bytes() - before < 32 * 1024 * 1024


def _get_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_pdf_child_over_its_timeout_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "reader"
    script.write_text(
        f"#!{sys.executable}\nimport os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    for seconds in (1.0, 5.0, 20.0):  # on a busy machine the child may not have started within the first timeout
        assert f"within {seconds:g} seconds" in await expect_failure(pdf("a"), ExtractionBounds(seconds=seconds))
        if pid.exists() and pid.read_text():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_cancelled_request_stops_its_pdf_child() -> None:
    extractor = TextExtractor(BOUNDS)
    tasks = [asyncio.ensure_future(extractor.extract_text("a", pdf("a"))) for _ in range(6)]
    await asyncio.sleep(0)
    for one in tasks:
        one.cancel()
    async with asyncio.timeout(100):
        await asyncio.wait(tasks)
    assert (extractor._admission.running, extractor._admission.waiting) == (0, 0)


async def test_without_the_files_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\ncat > /dev/null\necho \'{"fault": "missing"}\'\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    assert "antiphon[files]" in await expect_failure(pdf("a"), code="unsupported_file")


async def test_a_child_without_pypdf_reports_it(tmp_path: Path) -> None:
    """Runs the child itself, with its package hidden."""
    hidden = (
        "import sys; sys.modules['pypdf'] = None; from antiphon.service.attachments.document_child import main; main()"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", hidden, "document", "9", "9", "9",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(100):
        output, _ = await child.communicate(pdf("a"))
    assert output == b'{"fault": "missing"}'
