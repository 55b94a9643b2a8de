"""Files → text. Text files are recognised by their bytes.

PDFs and office documents are read in a child process that can be killed: a crafted one may keep a parser busy forever.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.core.documents import decode_text, describe_kind, is_archive, is_pdf
from antiphon.errors import InvalidFile, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.offload import run_python, run_sized

_MAX_CHILDREN, _MAX_WAITING = 2, 64  # documents read at once, and waiting
_TIMEOUT = 15.0
_JSON_BYTES = 256 * 1024  # of the child's output besides the text
_MAX_CHAR_BYTES = 12  # bytes of a character in the child's JSON
_FAULT_MESSAGES: Final[Mapping[str, str]] = {
    "encrypted": "The file is encrypted.",
    "empty": "The file contains no text: its pages may be images.",
    "size": "The office document is too large when it is unpacked.",
}
_UNREADABLE_MESSAGE = "The file cannot be read."

TTL_SECONDS = 300.0
MAX_BYTES = 64 * 1024 * 1024
_MAX_ENTRY_FRACTION = 4  # one entry may occupy 1/4 of the cache

Key = tuple[str, str, str]  # tenant, kind, and URL or digest


class DocumentReport(Struct, frozen=True):
    """The output of the child process."""

    text: str = ""
    fault: str = ""


_decoder = msgspec.json.Decoder(DocumentReport)


class Documents:
    def __init__(self, limits: Limits, timeout: float = _TIMEOUT) -> None:
        self._limits = limits
        self._timeout = timeout
        self._admission = Admission(_MAX_CHILDREN, _MAX_WAITING)

    async def extract_text(self, body: bytes, param: str) -> str:
        if is_pdf(body) or is_archive(body):
            return await self._extract_document(body, param)
        text = await run_sized(len(body), decode_text, body)
        if text is None:
            raise _unsupported_error(body, param)
        if len(text) > self._limits.file_characters:
            raise self._too_long_error(param)
        return text

    async def _extract_document(self, body: bytes, param: str) -> str:
        with self._admission.enter() as ticket:
            await ticket.wait_turn()
            try:
                async with asyncio.timeout(self._timeout):
                    report = await self._run_child(body)
            except TimeoutError:
                raise InvalidFile(f"The file could not be read within {self._timeout:g} seconds.", param=param)
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
            case "archive":
                raise _unsupported_error(body, param)
        raise InvalidFile(_FAULT_MESSAGES.get(report.fault, _UNREADABLE_MESSAGE), param=param)

    async def _run_child(self, body: bytes) -> DocumentReport:
        limits = self._limits
        limit_args = (str(limits.file_pages), str(limits.file_characters), str(int(self._timeout) + 1))
        max_bytes = limits.file_characters * _MAX_CHAR_BYTES + _JSON_BYTES
        output = await run_python(("-m", "antiphon.service.attachments.document_child", *limit_args), body, max_bytes)
        try:
            return _decoder.decode(output)
        except msgspec.MsgspecError:
            return DocumentReport(fault="broken")

    def _too_long_error(self, param: str) -> InvalidFile:
        return InvalidFile(
            f"The file's text exceeds the limit of {self._limits.file_characters:,} characters.",
            param=param,
        )


def _unsupported_error(body: bytes, param: str) -> InvalidFile:
    return InvalidFile(
        f"The file is {describe_kind(body)}. Supported files: text in UTF-8 or UTF-16, PDF, docx, pptx and xlsx.",
        param=param,
    )


class TtlCache:
    def __init__(
        self, max_bytes: int = MAX_BYTES, ttl: float = TTL_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[float, int, str]] = OrderedDict()  # insertion time, bytes, text

    def get(self, key: Key) -> str | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._clock() - entry[0] > self._ttl:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[2]

    def put(self, key: Key, text: str) -> None:
        size = len(text) if text.isascii() else 4 * len(text)
        if size > self._max_bytes // _MAX_ENTRY_FRACTION:
            return
        self._drop(key)
        self._entries[key] = (self._clock(), size, text)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= entry[1]
