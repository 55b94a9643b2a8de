"""Text extraction from files. PDFs are parsed in a child process that is killed at its timeout.

Covers `service/attachments/document_child.py`.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from antiphon.errors import AntiphonError, InvalidFile, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.service.attachments.documents import Documents, TtlCache
from drills.bombs.files import BROKEN_PDFS, make_expanding_pdf
from tests.support.media_files import pdf, png
from tests.support.office_files import archive, docx, paragraph, pptx

pytestmark = pytest.mark.anyio

FIELD = "input[0].content[0].file_data"


async def extract_text(body: bytes, limits: Limits | None = None, seconds: float = 60.0) -> str:
    async with asyncio.timeout(100):
        return await Documents(limits or Limits(), seconds).extract_text(body, FIELD)


async def expect_refusal(body: bytes, limits: Limits | None = None, seconds: float = 60.0) -> AntiphonError:
    with pytest.raises(AntiphonError) as refused:
        await extract_text(body, limits, seconds)
    assert refused.value.status == 400
    assert refused.value.param == FIELD
    assert not {"0x", "Traceback", "/site-packages/"} & {*refused.value.message.split()}
    return refused.value


async def test_text_is_decoded_and_other_formats_are_rejected_by_name() -> None:
    assert await extract_text("Größe\n".encode("utf-16")) == "Größe\n"
    assert await extract_text(b"") == ""
    assert "input_image" in (await expect_refusal(png())).message
    assert "ZIP" in (await expect_refusal(b"PK\x03\x04" + bytes(100))).message
    assert "characters" in (await expect_refusal(b"abcde", Limits(file_characters=4))).message


async def test_an_office_document_is_read_in_the_child_process() -> None:
    assert await extract_text(docx(paragraph("Hello"))) == "Hello\n"
    assert await extract_text(pptx({"s": "Hello"}, ["s"])) == "[slide 1]\nHello\n"
    assert "no text" in (await expect_refusal(docx(paragraph("")))).message
    assert "characters" in (await expect_refusal(docx(paragraph("Hello")), Limits(file_characters=5))).message
    assert "cannot be read" in (await expect_refusal(archive({"word/document.xml": "<"}))).message
    bomb = archive({"word/document.xml": bytes(101 * 1024 * 1024)})
    assert "too large" in (await expect_refusal(bomb)).message


async def test_a_pdf_is_read_page_by_page() -> None:
    assert await extract_text(pdf("Hello page", "and (more)".replace("(", "").replace(")", ""))) == (
        "[page 1]\nHello page\n\n[page 2]\nand more"
    )


async def test_pages_and_characters_of_a_pdf_are_limited() -> None:
    limits = Limits(file_pages=2, file_characters=12)
    assert await extract_text(pdf("abcdef", "ghijkl"), limits)
    assert "more than 2 pages" in (await expect_refusal(pdf("a", "b", "c"), limits)).message
    assert "12 characters" in (await expect_refusal(pdf("abcdef", "ghijklm"), limits)).message


async def test_a_pdf_without_text_is_rejected_instead_of_read_as_empty() -> None:
    assert "no text" in (await expect_refusal(pdf("", ""))).message


@pytest.mark.parametrize("body", BROKEN_PDFS)
async def test_a_broken_pdf_is_rejected_with_a_readable_message(body: bytes) -> None:
    assert isinstance(await expect_refusal(body), InvalidFile)


async def test_a_pdf_bomb_is_rejected_without_memory_growth_in_this_process() -> None:
    bomb = make_expanding_pdf()
    before = _get_resident_bytes()
    assert isinstance(await expect_refusal(bomb, seconds=8.0), InvalidFile)
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
        assert f"within {seconds:g} seconds" in (await expect_refusal(pdf("a"), seconds=seconds)).message
        if pid.exists() and pid.read_text():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_cancelled_request_stops_its_pdf_child() -> None:
    documents = Documents(Limits())
    tasks = [asyncio.ensure_future(documents.extract_text(pdf("a"), "")) for _ in range(6)]
    await asyncio.sleep(0)
    for one in tasks:
        one.cancel()
    async with asyncio.timeout(100):
        await asyncio.wait(tasks)
    assert (documents._admission.running, documents._admission.waiting) == (0, 0)


async def test_without_the_files_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\ncat > /dev/null\necho \'{"fault": "missing"}\'\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    refused = await expect_refusal(pdf("a"))
    assert isinstance(refused, UnsupportedParameter)
    assert "antiphon[files]" in refused.message


async def test_a_child_without_pypdf_reports_it(tmp_path: Path) -> None:
    """Runs the child itself, with its package hidden."""
    hidden = (
        "import sys; sys.modules['pypdf'] = None; from antiphon.service.attachments.document_child import main; main()"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", hidden, "9", "9", "9",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(100):
        output, _ = await child.communicate(pdf("a"))
    assert output == b'{"fault": "missing"}'


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_entries_are_separate_per_tenant_and_kind() -> None:
    cache = TtlCache()
    cache.put(("a", "picture", "u"), "seen")
    assert cache.get(("a", "picture", "u")) == "seen"
    assert cache.get(("b", "picture", "u")) is None
    assert cache.get(("a", "file", "u")) is None


def test_an_entry_expires_after_its_ttl() -> None:
    clock = Clock()
    cache = TtlCache(ttl=10.0, clock=clock)
    cache.put(("a", "picture", "u"), "seen")
    clock.now = 9.0
    assert cache.get(("a", "picture", "u")) == "seen"
    clock.now = 11.0  # a read does not extend the lifetime
    assert cache.get(("a", "picture", "u")) is None
    assert cache.bytes == 0


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = TtlCache(max_bytes=100)
    for name in "abcd":
        cache.put(("t", "file", name), name * 25)
    assert cache.get(("t", "file", "a"))
    cache.put(("t", "file", "e"), "e" * 25)
    assert [name for name in "abcde" if cache.get(("t", "file", name))] == ["a", "c", "d", "e"]
    assert cache.bytes == 100
    cache.put(("t", "file", "f"), "f" * 26)  # more than a quarter of the cache
    assert cache.get(("t", "file", "f")) is None
    cache.put(("t", "file", "e"), "new")
    assert cache.get(("t", "file", "e")) == "new"
    assert cache.bytes == 78
