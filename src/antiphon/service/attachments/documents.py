"""Files → text. Text files are recognised by their bytes.

PDFs are read in a child process that can be killed: a crafted PDF may keep a reader busy forever.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.child_process import run_python
from antiphon.core.media.documents import decode_text, describe_kind, is_pdf
from antiphon.errors import InvalidFile, UnsupportedParameter
from antiphon.limits import Limits

_MAX_CHILDREN, _MAX_WAITING = 2, 64  # PDFs read at once, and waiting
_TIMEOUT = 15.0
_MAX_INLINE_BYTES = 256 * 1024
_MAX_CHAR_BYTES = 12  # bytes of a character in the child's JSON
_FAULT_MESSAGES: Final[Mapping[str, str]] = {
    "encrypted": "The PDF is encrypted.",
    "empty": "The PDF contains no text: its pages may be images.",
}
_UNREADABLE_MESSAGE = "The PDF cannot be read."


class PdfReport(Struct, frozen=True):
    """The output of the child process."""

    text: str = ""
    fault: str = ""


_decoder = msgspec.json.Decoder(PdfReport)


class Documents:
    def __init__(self, limits: Limits, timeout: float = _TIMEOUT) -> None:
        self._limits = limits
        self._timeout = timeout
        self._admission = Admission(_MAX_CHILDREN, _MAX_WAITING)

    async def extract_text(self, body: bytes, param: str) -> str:
        if is_pdf(body):
            return await self._extract_pdf(body, param)
        text = decode_text(body) if len(body) < _MAX_INLINE_BYTES else await asyncio.to_thread(decode_text, body)
        if text is None:
            raise InvalidFile(
                f"The file is {describe_kind(body)}. Supported files: text in UTF-8 or UTF-16, and PDF.", param=param
            )
        if len(text) > self._limits.file_characters:
            raise self._too_long_error(param)
        return text

    async def _extract_pdf(self, body: bytes, param: str) -> str:
        with self._admission.enter() as ticket:
            await ticket.wait_turn()
            try:
                async with asyncio.timeout(self._timeout):
                    report = await self._run_child(body)
            except TimeoutError:
                raise InvalidFile(f"The PDF could not be read within {self._timeout:g} seconds.", param=param)
        match report.fault:
            case "":
                return report.text
            case "missing":
                raise UnsupportedParameter(
                    "Reading PDFs requires the extra `files` on the server: pip install 'antiphon[files]'.", param=param
                )
            case "pages":
                raise InvalidFile(f"The PDF has more than {self._limits.file_pages} pages.", param=param)
            case "characters":
                raise self._too_long_error(param)
        raise InvalidFile(_FAULT_MESSAGES.get(report.fault, _UNREADABLE_MESSAGE), param=param)

    async def _run_child(self, body: bytes) -> PdfReport:
        limits = self._limits
        limit_args = (str(limits.file_pages), str(limits.file_characters), str(int(self._timeout) + 1))
        max_bytes = limits.file_characters * _MAX_CHAR_BYTES + _MAX_INLINE_BYTES
        output = await run_python(("-m", "antiphon.service.attachments.pdf_child", *limit_args), body, max_bytes)
        try:
            return _decoder.decode(output)
        except msgspec.MsgspecError:
            return PdfReport(fault="broken")

    def _too_long_error(self, param: str) -> InvalidFile:
        return InvalidFile(
            f"The file's text exceeds the limit of {self._limits.file_characters:,} characters.",
            param=param,
        )
