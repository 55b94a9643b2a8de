"""Replace the marks in the output of a model by file_citation annotations.

    Otters hold hands【3†otters.txt】.   →   Otters hold hands.
                                                           └ index 17

The text is otherwise unchanged, as OpenAI leaves it, and an index counts the code points before the mark; each item
begins a new part. A mark with an unknown number is removed. So are marks in code, which would not run with them. Text
that may become a mark is held back, some hundred characters at most, however the text is split.

Small models often cite nothing: if the model has read one file and no page, the file is cited at the end of the answer.
"""

import re
from collections.abc import Sequence
from typing import Final

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Citation, Delta, Text
from antiphon.protocol.types.parts import FileCitation, Logprob
from antiphon.tools.file_search.passages import CitedFile, Passages

_MAX_LABEL = 400  # characters of a name or of what a model writes instead
_OPEN = "【"
# 【3†otters.txt】, and what models write that were trained on other tools: 【3】, 【3†L1-L4】, 【4:0†source】
_MARK: Final = re.compile(
    rf"【 ?(?P<number>\d{{1,6}})(?P<turn>:\d{{1,6}})? ?(?:†(?P<label>[^\n【】]{{0,{_MAX_LABEL}}}))?】"
)
_UNFINISHED: Final = re.compile(rf"【 ?(?:\d{{1,6}}(?::\d{{0,6}})? ?(?:†[^\n【】]{{0,{_MAX_LABEL}}})?)?\Z")


class FileCitationRewriter:
    """Rewrites the output of one turn."""

    reads_marks = True

    def __init__(self, passages: Passages, is_last: bool) -> None:
        """Unless `is_last`, a mark must have the name of the file, since other tools number their pages as well."""
        self._passages = passages
        self._is_last = is_last
        self._logprobs: list[Logprob] = []  # of text that is held back
        self._reset()

    def _reset(self) -> None:
        self._held = ""
        self._length = 0  # characters of the part so far
        self._cited: set[tuple[str, int]] = set()  # files and indexes

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is Text:
                self._logprobs += delta.logprobs
                self._process(self._held + delta.text, out)
            elif isinstance(delta, CallDelta | CallDone):
                out.append(delta)  # belongs to a concurrent call
            else:
                self._end_part(out, is_answer=not isinstance(delta, CallStarted))
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        self._end_part(out, is_answer=True)
        return out

    def _process(self, text: str, out: list[Delta]) -> None:
        begin = 0
        for mark in _MARK.finditer(text) if _OPEN in text else ():
            file = self._find_file(mark)
            if file is None and not (self._is_last and mark["label"] is not None):
                continue  # not a mark, or that of another tool
            self._emit(text[begin : mark.start()], out)
            begin = mark.end()
            if file is not None:
                self._cite(file, out)
        unfinished = _UNFINISHED.search(text, begin) if _OPEN in text else None
        end = len(text) if unfinished is None else unfinished.start()
        self._emit(text[begin:end], out)
        self._held = text[end:]

    def _find_file(self, mark: re.Match[str]) -> CitedFile | None:
        file = None if mark["turn"] else self._passages.get_file(int(mark["number"]))
        has_name = file is not None and mark["label"] is not None and mark["label"].strip() == file.label
        return file if self._is_last or has_name else None

    def _end_part(self, out: list[Delta], is_answer: bool) -> None:
        self._emit(self._held, out)
        if self._logprobs:
            out.append(Text("", tuple(self._logprobs)))
            self._logprobs.clear()
        needs_citation = is_answer and self._is_last and self._length and not self._cited
        if needs_citation and (file := self._passages.only_file) is not None:
            self._cite(file, out)
        self._reset()

    def _cite(self, file: CitedFile, out: list[Delta]) -> None:
        """Cite a file, once at each index: two passages of it may be cited side by side."""
        if (file.file_id, self._length) not in self._cited:
            self._cited.add((file.file_id, self._length))
            out.append(Citation(FileCitation(file_id=file.file_id, filename=file.filename, index=self._length)))

    def _emit(self, text: str, out: list[Delta]) -> None:
        if text:
            self._length += len(text)
            out.append(Text(text, tuple(self._logprobs)))
            self._logprobs.clear()
