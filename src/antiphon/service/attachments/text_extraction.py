"""The text of files: plain text in any format, and that of HTML, PDF and office documents.

Text is recognised by its bytes. Everything else is parsed in a child process (`document_child.py`) that can be killed:
a crafted file may keep a parser busy forever.
"""

import asyncio
from typing import Final, Literal

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.core.documents import decode_text, describe_kind, is_archive, is_html, is_pdf
from antiphon.offload import run_python, run_sized

_MAX_WAITING = 64  # files
_JSON_BYTES = 256 * 1024  # of the child's output besides the text
_MAX_CHAR_BYTES = 6  # bytes of a character in the child's JSON, and more than in any encoding of text
_FORMATS: Final = "text in UTF-8 or UTF-16, HTML, PDF, docx, pptx and xlsx"
_MISSING_MESSAGE: Final = "Reading PDFs requires the extra `files` on the server: pip install 'antiphon[files]'."
_FAULTS: Final = {
    "pages": "The PDF has more than {pages} pages.",
    "encrypted": "The file is encrypted.",
    "empty": "The file contains no text: its pages may be images.",
    "size": "The office document is too large when it is unpacked.",
}

FailureCode = Literal["unsupported_file", "invalid_file"]


class ExtractionFailed(Exception):
    """`code`: that of OpenAI's API for files of vector stores. `message`: a sentence for the client."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ExtractionBounds(Struct, frozen=True, kw_only=True):
    """Bounds of one file, and how many are parsed at once. The text of a stored file may have 5 million tokens, as in
    OpenAI's API, of about four characters each.
    """

    pages: int = 10_000  # of a PDF
    characters: int = 20_000_000
    seconds: float = 120.0
    children: int = 1


class DocumentReport(Struct, frozen=True):
    """The output of the child process."""

    text: str = ""
    fault: str = ""


_decoder = msgspec.json.Decoder(DocumentReport)


def is_parsed(name: str, data: bytes) -> bool:
    """Return whether the text of a file is extracted by a parser, which takes time."""
    return is_pdf(data) or is_archive(data) or is_html(name, data)


class TextExtractor:
    def __init__(self, bounds: ExtractionBounds) -> None:
        self._bounds = bounds
        self._admission = Admission(bounds.children, _MAX_WAITING)

    async def extract_text(self, name: str, data: bytes) -> str:
        """Return the text of a file. Raises ExtractionFailed."""
        if is_pdf(data) or is_archive(data):
            return await self._parse("document", data)
        text = await self._decode(data)
        if is_html(name, data):
            return await self._parse("html", await run_sized(len(data), text.encode))
        return text

    async def _decode(self, data: bytes) -> str:
        if len(data) > self._bounds.characters * _MAX_CHAR_BYTES:  # too long in any encoding
            raise self._too_long_error()
        text = await run_sized(len(data), decode_text, data)
        if text is None:
            raise _unsupported_error(data)
        if len(text) > self._bounds.characters:
            raise self._too_long_error()
        return text

    async def _parse(self, kind: Literal["document", "html"], data: bytes) -> str:
        with self._admission.enter() as ticket:
            await ticket.wait_turn()
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    report = await self._run_child(kind, data)
            except TimeoutError:
                seconds = f"{self._bounds.seconds:g} seconds"
                raise ExtractionFailed("invalid_file", f"The file could not be read within {seconds}.") from None
        if report.fault:
            raise self._to_error(report.fault, data)
        return report.text

    async def _run_child(self, kind: str, data: bytes) -> DocumentReport:
        bounds = self._bounds
        arguments = (kind, str(bounds.pages), str(bounds.characters), str(int(bounds.seconds) + 1))
        max_bytes = bounds.characters * _MAX_CHAR_BYTES + _JSON_BYTES
        output = await run_python(("-m", "antiphon.service.attachments.document_child", *arguments), data, max_bytes)
        try:
            return await run_sized(len(output), _decoder.decode, output)
        except msgspec.MsgspecError:
            return DocumentReport(fault="broken")

    def _to_error(self, fault: str, data: bytes) -> ExtractionFailed:
        match fault:
            case "archive":
                return _unsupported_error(data)
            case "missing":
                return ExtractionFailed("unsupported_file", _MISSING_MESSAGE)
            case "characters":
                return self._too_long_error()
        message = _FAULTS.get(fault, "The file cannot be read.")
        return ExtractionFailed("invalid_file", message.format(pages=self._bounds.pages))

    def _too_long_error(self) -> ExtractionFailed:
        limit = f"{self._bounds.characters:,} characters"
        return ExtractionFailed("invalid_file", f"The file's text exceeds the limit of {limit}.")


def _unsupported_error(data: bytes) -> ExtractionFailed:
    message = f"The file is {describe_kind(data)}. Supported files: {_FORMATS}."
    return ExtractionFailed("unsupported_file", message)
