"""A file → its text. What is text is told by its bytes. PDFs are read in a child process, which can be killed:
whoever wrote one may have written it to keep a reader busy for ever."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.child_process import said_by
from antiphon.core.media.documents import is_pdf, kind_of, text_in
from antiphon.errors import InvalidFile, UnsupportedParameter
from antiphon.limits import Limits

_AT_ONCE, _QUEUE = 2, 64  # PDFs
_SECONDS = 15.0
_READ = 256 * 1024
_WIDEST = 12  # bytes of a character in the child's answer
_FAULTS: Final[Mapping[str, str]] = {
    "encrypted": "The PDF is encrypted.",
    "empty": "The PDF holds no text: its pages may be pictures.",
}
_BROKEN = "The PDF cannot be read."


class Report(Struct, frozen=True):
    """What the child says."""

    text: str = ""
    fault: str = ""


_decoder = msgspec.json.Decoder(Report)


class Documents:
    def __init__(self, limits: Limits, seconds: float = _SECONDS) -> None:
        self._limits = limits
        self._seconds = seconds
        self._room = Admission(_AT_ONCE, _QUEUE)

    async def text(self, body: bytes, param: str) -> str:
        if is_pdf(body):
            return await self._pdf(body, param)
        text = text_in(body) if len(body) < _READ else await asyncio.to_thread(text_in, body)
        if text is None:
            raise InvalidFile(
                f"The file is {kind_of(body)}. Files that are taken: text in UTF-8 or UTF-16, and PDF.", param=param
            )
        if len(text) > self._limits.file_characters:
            raise self._too_long(param)
        return text

    async def _pdf(self, body: bytes, param: str) -> str:
        with self._room.enter() as ticket:
            await ticket.ready()
            try:
                async with asyncio.timeout(self._seconds):
                    report = await self._report(body)
            except TimeoutError:
                raise InvalidFile(f"The PDF could not be read within {self._seconds:g} seconds.", param=param)
        match report.fault:
            case "":
                return report.text
            case "missing":
                raise UnsupportedParameter(
                    "To read PDFs this server needs the extra `files`: pip install 'antiphon[files]'.", param=param
                )
            case "pages":
                raise InvalidFile(f"The PDF has more than {self._limits.file_pages} pages.", param=param)
            case "characters":
                raise self._too_long(param)
        raise InvalidFile(_FAULTS.get(report.fault, _BROKEN), param=param)

    async def _report(self, body: bytes) -> Report:
        limits = self._limits
        bounds = (str(limits.file_pages), str(limits.file_characters), str(int(self._seconds) + 1))
        most = limits.file_characters * _WIDEST + _READ
        said = await said_by(("-m", "antiphon.service.attachments.pdf_child", *bounds), body, most)
        try:
            return _decoder.decode(said)
        except msgspec.MsgspecError:
            return Report(fault="broken")

    def _too_long(self, param: str) -> InvalidFile:
        return InvalidFile(
            f"The file's text has more than the {self._limits.file_characters:,} characters that are allowed.",
            param=param,
        )
