"""The passages of files that one response has shown to its model, numbered from 1.

    【3†otters.txt】 file-8d1f
    Otters hold hands while they sleep.

The model cites a passage with its mark. A passage that is found again keeps its number. The id of the file is part of
the text, so that a server that takes the response over can restore the numbers from the log. The characters of marks
are replaced in names and texts: no file can forge a mark or another passage.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.core.file_search import SearchHit
from antiphon.tools.untrusted_text import escape_markers

_PASSAGE = re.compile(r"^【(\d{1,6})†([^\n】]*)】 (\S+)\n([^【]*)", re.MULTILINE)
_CITE = "Cite what you take from a passage right behind it, with the mark of the passage, such as {}."


class CitedFile(Struct, frozen=True):
    file_id: str
    filename: str

    @property
    def label(self) -> str:
        """The name within a mark, which is one line."""
        return " ".join(escape_markers(self.filename).split())


class Passages:
    def __init__(self) -> None:
        self._files: dict[int, CitedFile] = {}  # by the number of the passage
        self._numbers: dict[tuple[str, str], int] = {}  # by the file and the text

    def __bool__(self) -> bool:
        return bool(self._files)

    @property
    def only_file(self) -> CitedFile | None:
        """The file of all passages; None if they are from several files."""
        files = {file.file_id: file for file in self._files.values()}
        return next(iter(files.values())) if len(files) == 1 else None

    def get_file(self, number: int) -> CitedFile | None:
        return self._files.get(number)

    def render(self, hits: Sequence[SearchHit]) -> str:
        """Number the hits and return them as the model reads them."""
        texts = [escape_markers(hit.text).strip() for hit in hits]
        marks = [self._mark(CitedFile(hit.file_id, hit.filename), text) for hit, text in zip(hits, texts, strict=True)]
        passages = [f"{mark} {hit.file_id}\n{text}" for mark, hit, text in zip(marks, hits, texts, strict=True)]
        return "\n\n".join([_CITE.format(marks[0]), *passages])

    def _mark(self, file: CitedFile, text: str) -> str:
        number = self._numbers.setdefault((file.file_id, text), len(self._numbers) + 1)
        self._files[number] = file
        return f"【{number}†{file.label}】"

    def restore(self, output: str) -> None:
        """Restore the numbers from passages that another server rendered."""
        for number, name, file_id, text in _PASSAGE.findall(output):
            self._numbers[file_id, text.strip()] = int(number)
            self._files[int(number)] = CitedFile(file_id, name)
