"""Cite the files that code has written as container_file_citation annotations.

    The numbers are [here](sandbox:/mnt/data/numbers.csv).
                           └ start_index 23             └ end_index 52

The text is not changed. A link to a file is cited where it stands, and a figure that no answer has linked at 0, as
OpenAI does: so figures reach the user even if the model does not mention them. Annotations follow at the end of their
text, when it is known that no longer name of a file was meant.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Citation, Delta, Text, ToolOutputContent
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import ContainerFileCitation, InputText, OutputText
from antiphon.tools.base import WrittenFile

LINK: Final = "sandbox:"
MAX_LISTED_FILES: Final = 50  # that a model is told of
_NOTE: Final = re.compile(r"^\[(cfile_\w{1,64}) (?:(figure)|sandbox:(/mnt/data/[^\n]{1,1000}))\]$", re.MULTILINE)


def describe_files(files: Sequence[WrittenFile], unlisted: int = 0) -> list[str]:
    """Return the notes that name files to models and other servers. `unlisted` are files without an id."""
    notes = [f"[{file.file_id} {'figure' if file.is_figure else LINK + file.path}]" for file in files]
    more = [f"[{count:,} more files were written.]"] if (count := unlisted + len(files[MAX_LISTED_FILES:])) else []
    return notes[:MAX_LISTED_FILES] + more


def escape_notes(printed: str) -> str:
    """Replace the beginnings of notes in a text that code has printed."""
    return printed.replace("[cfile_", "(cfile_")


class WrittenFiles:
    """The files that the code of a response has written, by the links that models write."""

    def __init__(self) -> None:
        self._by_link: dict[str, WrittenFile] = {}
        self._figures: dict[str, WrittenFile] = {}  # that were not cited yet, by id

    def __bool__(self) -> bool:
        return bool(self._by_link)

    def add(self, files: Iterable[WrittenFile]) -> None:
        for file in files:
            self._by_link |= dict.fromkeys((LINK + file.path, LINK + quote(file.path)), file)
            if file.is_figure:
                self._figures[file.file_id] = file

    def clear(self) -> None:
        """Forget all files, because their container is lost."""
        self._by_link.clear()
        self._figures.clear()

    def restore(self, output: ToolOutputContent) -> None:
        """Restore the files from an output that another server made; their container is that of the response."""
        text = output if isinstance(output, str) else "".join([x.text for x in output if isinstance(x, InputText)])
        self.add(
            WrittenFile(
                file_id=file_id,
                container_id="",
                path=path or f"/mnt/data/{file_id}.png",
                size=0,
                is_figure=bool(figure),
            )
            for file_id, figure, path in _NOTE.findall(text)
        )

    def find_links(self, text: str) -> Iterator[tuple[int, int, WrittenFile]]:
        """Yield where files are linked in a text. Of two names that both match, the longer one is meant."""
        if LINK in text and self._by_link:
            names = "|".join(map(re.escape, sorted(self._by_link, key=len, reverse=True)))
            for found in re.finditer(rf"(?:{names})(?![\w-]|\.\w)", text):
                file = self._by_link[found[0]]
                self._figures.pop(file.file_id, None)
                yield found.start(), found.end(), file

    def take_figures(self) -> list[WrittenFile]:
        """Return the figures that were not cited yet, once."""
        figures, self._figures = [*self._figures.values()], {}
        return figures


def list_cited_files(items: Iterable[InputItem]) -> list[WrittenFile]:
    """Return the files that answers among the items have cited. They can be linked again."""
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    texts = [part for part in parts if isinstance(part, OutputText)]
    return [
        WrittenFile(file_id=cited.file_id, container_id=cited.container_id, path=f"/mnt/data/{cited.filename}", size=0)
        for text in texts
        for cited in text.annotations
        if isinstance(cited, ContainerFileCitation)
    ]


class ContainerFileRewriter:
    """Annotates the output of one turn, and names the container of the calls in it."""

    reads_marks = False

    def __init__(self, files: WrittenFiles, container: str, lists_outputs: bool) -> None:
        self._files = files
        self._container = container
        self._lists_outputs = lists_outputs
        self._texts: list[str] = []  # of the open message

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is Text:
                self._texts.append(delta.text)
            elif type(delta) is CallStarted:
                out += self._end_message(is_answer=False)
                delta = self._name_container(delta)
            elif not isinstance(delta, CallDelta | CallDone | Citation):  # those of a concurrent call, or of this text
                out += self._end_message(is_answer=True)
            out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        return self._end_message(is_answer=True)

    def _name_container(self, started: CallStarted) -> CallStarted:
        if started.kind != "code_interpreter":
            return started
        return replace(started, namespace=self._container, lists_outputs=self._lists_outputs)

    def _end_message(self, is_answer: bool) -> list[Delta]:
        text, self._texts = "".join(self._texts), []
        found = [*self._files.find_links(text)]
        if is_answer and text:
            found += [(0, 0, figure) for figure in self._files.take_figures()]
        return [Citation(self._cite(*each)) for each in found]

    def _cite(self, start: int, end: int, file: WrittenFile) -> ContainerFileCitation:
        return ContainerFileCitation(
            container_id=file.container_id or self._container,
            file_id=file.file_id,
            filename=file.filename,
            start_index=start,
            end_index=end,
        )
