"""Files become text; what a PDF does to its reader stays in a process that is killed in time."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from antiphon.errors import AntiphonError, InvalidFile, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.service.attachments.documents import Documents
from drills.bombs.files import BROKEN_PDFS, swollen_pdf
from tests.support.media_files import pdf, png

pytestmark = pytest.mark.anyio

FIELD = "input[0].content[0].file_data"


async def text_of(body: bytes, limits: Limits | None = None, seconds: float = 60.0) -> str:
    async with asyncio.timeout(100):
        return await Documents(limits or Limits(), seconds).text(body, FIELD)


async def refusal(body: bytes, limits: Limits | None = None, seconds: float = 60.0) -> AntiphonError:
    with pytest.raises(AntiphonError) as refused:
        await text_of(body, limits, seconds)
    assert refused.value.status == 400
    assert refused.value.param == FIELD
    assert not {"0x", "Traceback", "/site-packages/"} & {*refused.value.message.split()}
    return refused.value


async def test_text_is_text_and_other_things_are_named() -> None:
    assert await text_of("Größe\n".encode("utf-16")) == "Größe\n"
    assert await text_of(b"") == ""
    assert "input_image" in (await refusal(png())).message
    assert "ZIP" in (await refusal(b"PK\x03\x04" + bytes(100))).message
    assert "characters" in (await refusal(b"abcde", Limits(file_characters=4))).message


async def test_a_pdf_is_read_page_by_page() -> None:
    assert await text_of(pdf("Hello page", "and (more)".replace("(", "").replace(")", ""))) == (
        "[page 1]\nHello page\n\n[page 2]\nand more"
    )


async def test_pages_and_characters_of_a_pdf_are_counted() -> None:
    limits = Limits(file_pages=2, file_characters=12)
    assert await text_of(pdf("abcdef", "ghijkl"), limits)
    assert "more than 2 pages" in (await refusal(pdf("a", "b", "c"), limits)).message
    assert "12 characters" in (await refusal(pdf("abcdef", "ghijklm"), limits)).message


async def test_a_pdf_without_text_is_refused_and_not_read_as_nothing() -> None:
    assert "no text" in (await refusal(pdf("", ""))).message


@pytest.mark.parametrize("body", BROKEN_PDFS)
async def test_a_broken_pdf_is_a_sentence(body: bytes) -> None:
    assert isinstance(await refusal(body), InvalidFile)


async def test_a_pdf_that_swells_is_refused_and_costs_this_process_nothing() -> None:
    bomb = swollen_pdf()
    before = _resident()
    assert isinstance(await refusal(bomb, seconds=8.0), InvalidFile)
    assert _resident() - before < 32 * 1024 * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_reader_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "reader"
    script.write_text(
        f"#!{sys.executable}\nimport os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    for seconds in (1.0, 5.0, 20.0):  # on a busy machine it may not even have begun in the first of them
        assert f"within {seconds:g} seconds" in (await refusal(pdf("a"), seconds=seconds)).message
        if pid.exists() and pid.read_text():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_request_that_is_given_up_takes_the_reader_with_it() -> None:
    made = Documents(Limits())
    asking = [asyncio.ensure_future(made.text(pdf("a"), "")) for _ in range(6)]
    await asyncio.sleep(0)
    for one in asking:
        one.cancel()
    async with asyncio.timeout(100):
        await asyncio.wait(asking)
    assert (made._room.running, made._room.waiting) == (0, 0)


async def test_without_the_extra_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\ncat > /dev/null\necho \'{"fault": "missing"}\'\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    refused = await refusal(pdf("a"))
    assert isinstance(refused, UnsupportedParameter)
    assert "antiphon[files]" in refused.message


async def test_a_child_without_pypdf_says_so(tmp_path: Path) -> None:
    """The child itself, with its package hidden."""
    hidden = "import sys; sys.modules['pypdf'] = None; from antiphon.service.attachments.pdf_child import main; main()"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", hidden, "9", "9", "9",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(100):
        said, _ = await child.communicate(pdf("a"))
    assert said == b'{"fault": "missing"}'
