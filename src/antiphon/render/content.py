"""Content parts → chat content: a string where all of it is text, a list of chat parts where it is not.

A file is text for every engine. A picture is data, never a URL that an engine would fetch. What the engine cannot see
or hear is refused by the part's own name.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import UNSET

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import (
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    MessagePart,
    OutputText,
    PlainText,
    RefusalPart,
    Screenshot,
)
from antiphon.render.attachments import Attached, FileSource, ImageSource

Param = Callable[[int, str], str]  # the name of a field of the part with this index; of the part itself without one
Honours = frozenset[str]
_Other = RefusalPart | InputImage | Screenshot | InputFile | InputAudio


class Beholder:
    """Makes content for an engine that honours so much, with what is attached."""

    __slots__ = ("_attached", "_honours")

    def __init__(self, honours: Honours, attached: Attached) -> None:
        self._honours = honours
        self._attached = attached

    def content(self, parts: Sequence[MessagePart], joint: str, param: Param) -> str | list[Json]:
        shown = [
            part.text if isinstance(part, (InputText, OutputText, PlainText)) else self._shown(part, index, param)
            for index, part in enumerate(parts)
        ]
        texts = [part for part in shown if isinstance(part, str)]
        if len(texts) == len(shown):
            return joint.join(texts)
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in shown]

    def _shown(self, part: _Other, index: int, param: Param) -> str | Json:
        match part:
            case RefusalPart():
                return part.refusal
            case InputImage() | Screenshot():
                self._demand("input_image", param(index, ""))
                return self._image(part, index, param)
            case InputFile():
                return self._file(part, index, param)
            case InputAudio():
                self._demand("input_audio", param(index, ""))
                audio = part.input_audio
                return {"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}}
            case _:
                assert_never(part)

    def _demand(self, kind: str, param: str) -> None:
        if kind not in self._honours:
            raise UnsupportedParameter(f"The model takes no {kind} parts.", param=param)

    def _image(self, part: InputImage | Screenshot, index: int, param: Param) -> Json:
        if part.image_url is UNSET:
            raise _without(part, "image_url", index, param)
        url = self._attached.show(ImageSource(part.image_url), param(index, ".image_url"))
        detail = "auto" if part.detail is UNSET else part.detail
        return {"type": "image_url", "image_url": {"url": url, "detail": "high" if detail == "original" else detail}}

    def _file(self, part: InputFile, index: int, param: Param) -> str:
        name = "" if part.filename is UNSET else part.filename
        if part.file_data is not UNSET:
            return self._attached.show(FileSource(name, data=part.file_data), param(index, ".file_data"))
        if part.file_url is not UNSET:
            return self._attached.show(FileSource(name, url=part.file_url), param(index, ".file_url"))
        raise _without(part, "file_data", index, param)


def _without(
    part: InputImage | Screenshot | InputFile, wanted: str, index: int, param: Param
) -> InvalidValue | UnsupportedParameter:
    if part.file_id is UNSET:
        return InvalidValue(f"The part has no {wanted}.", param=param(index, ""))
    return UnsupportedParameter(
        f"This server keeps no files yet: send what it holds as {wanted}.", param=param(index, ".file_id")
    )
