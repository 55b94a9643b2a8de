"""Output of one run of code: as the client gets it in the item, and as the model reads it.

    [1, 2, 3]                                       what the code has printed, in the middle shortened
    [A figure was shown to the user.]
    [cfile_0190b1 sandbox:/mnt/data/numbers.csv]    a file that it has written

Lines about files are in this form, so that a server that takes the response over can restore them from the log. Printed
text cannot forge them: the bracket before an id is replaced in it.
"""

from typing import Final, assert_never

from antiphon.core.data_urls import to_data_url
from antiphon.core.deltas import ToolOutputContent
from antiphon.limits import Limits
from antiphon.protocol.types.items import CodeImage, CodeLogs
from antiphon.protocol.types.parts import InputText
from antiphon.sandbox.base import CodeEvent, CodeResult, Figure, PrintedText
from antiphon.tools.base import WrittenFile
from antiphon.tools.code_interpreter.citations import describe_files, escape_notes
from antiphon.tools.untrusted_images import make_input_image

MAX_PRINTED_LENGTH: Final = 20_000  # characters of printed text that a model reads
MAX_INLINE_IMAGE: Final = 4 * 1024 * 1024  # bytes; larger ones are named by the URL of their file
NO_OUTPUT = "[The code has printed nothing.]"
SHOWN = "[A figure was shown to the user.]"
RESTARTED = "[Python was started anew for this call: earlier variables and imports are lost, files are still there.]"
_STOPPED: Final = {
    "timeout": "[The code was stopped at its deadline, after {seconds:.0f} seconds.]",
    "interrupted": "[The code was interrupted.]",
    "killed": "[Python was killed ({reason}): variables and imports are lost, files are still there.]",
}


class RunOutput:
    """Collects the events of a run. `limits`: of the images that models are shown."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._printed: list[list[str]] = [[]]  # texts before, between and after the figures
        self._figures: list[Figure] = []
        self._figure_files: dict[int, WrittenFile] = {}  # by the index of the figure
        self._result: CodeResult | None = None
        self.files: list[WrittenFile] = []
        self.notice = ""  # for the model, before everything else

    def add(self, event: CodeEvent | WrittenFile) -> None:
        match event:
            case PrintedText():
                self._printed[-1].append(event.text)
            case Figure():
                self._figures.append(event)
                self._printed.append([])
            case WrittenFile():
                if event.path.isprintable():  # the name is chosen by code: it must not forge a line, and be valid text
                    self.files.append(event)
                if event.is_figure:
                    self._figure_files[len(self._figures) - 1] = event
            case CodeResult():
                self._result = event
            case _:
                assert_never(event)

    @property
    def is_stopped(self) -> bool:
        """Whether the code did not end by itself. An exception is an end."""
        return self._result is None or self._result.outcome in _STOPPED

    def to_outputs(self) -> list[CodeLogs | CodeImage]:
        """Return the outputs in their order; how the code was stopped is part of the last text."""
        texts = ["".join(pieces) for pieces in self._printed]
        texts[-1] += "\n".join(self._describe_end())
        outputs: list[CodeLogs | CodeImage] = []
        for index, text in enumerate(texts):
            outputs += [CodeLogs(logs=text)] if text else []
            outputs += [CodeImage(url=self._make_url(index))] if index < len(self._figures) else []
        return outputs

    def to_model_output(self) -> ToolOutputContent:
        """Return a text, and the figures for models that see images."""
        restarted = [RESTARTED] if self._result is not None and self._result.restarted else []
        printed = shorten("".join([text for pieces in self._printed for text in pieces]).rstrip("\n"))
        lines = [self.notice, *restarted, escape_notes(printed) or NO_OUTPUT, *self._describe_end()]
        unlisted = 0 if self._result is None else self._result.unlisted
        text = "\n".join(filter(None, [*lines, *[SHOWN] * len(self._figures), *describe_files(self.files, unlisted)]))
        if not self._figures:
            return text
        images = [make_input_image(figure.png, self._limits) for figure in self._figures]
        return [InputText(text=text), *[image for image in images if image is not None]]

    def _describe_end(self) -> list[str]:
        """Return sentences about output that is missing and about code that was stopped."""
        if (result := self._result) is None:
            return []
        dropped = [f"[{result.dropped:,} more bytes of output were dropped.]"] if result.dropped else []
        stopped = _STOPPED.get(result.outcome, "").format(seconds=result.seconds, reason=result.reason)
        return [*dropped, *filter(None, [stopped])]

    def _make_url(self, index: int) -> str:
        figure, file = self._figures[index], self._figure_files.get(index)
        if len(figure.png) <= MAX_INLINE_IMAGE or file is None:
            return to_data_url("image/png", figure.png)
        return f"/v1/containers/{file.container_id}/files/{file.file_id}/content"


def shorten(text: str, limit: int = MAX_PRINTED_LENGTH) -> str:
    """Leave out the middle of a long text."""
    if (left_out := len(text) - limit) <= 0:
        return text
    tail = limit // 2
    return f"{text[: limit - tail]}\n[{left_out:,} characters are left out.]\n{text[len(text) - tail :]}"
