"""Content parts → chat content: a string where all of it is text, a list of chat parts where it is not.

What the engine cannot see, hear or open is refused by the part's own name.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import UNSET, UnsetType

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.items import (
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

Param = Callable[[int], str]  # the name of the part with this index
Honours = frozenset[str]
_Other = RefusalPart | InputImage | Screenshot | InputFile | InputAudio


def content_of(parts: Sequence[MessagePart], joint: str, honours: Honours, param: Param) -> str | list[Json]:
    shown = [
        part.text if isinstance(part, (InputText, OutputText, PlainText)) else _shown(part, honours, param(index))
        for index, part in enumerate(parts)
    ]
    texts = [part for part in shown if isinstance(part, str)]
    if len(texts) == len(shown):
        return joint.join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in shown]


def _shown(part: _Other, honours: Honours, param: str) -> str | Json:
    match part:
        case RefusalPart():
            return part.refusal
        case InputImage() | Screenshot():
            _demand("input_image", honours, param)
            return _image(part, param)
        case InputFile():
            _demand("input_file", honours, param)
            return _file(part, param)
        case InputAudio():
            _demand("input_audio", honours, param)
            audio = part.input_audio
            return {"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}}
        case _:
            assert_never(part)


def _demand(kind: str, honours: Honours, param: str) -> None:
    if kind not in honours:
        raise UnsupportedParameter(f"The model takes no {kind} parts.", param=param)


def _image(part: InputImage | Screenshot, param: str) -> Json:
    if part.image_url is UNSET:
        raise _without(part.file_id, "image_url", param)
    detail = "auto" if part.detail is UNSET else part.detail
    return {
        "type": "image_url",
        "image_url": {"url": part.image_url, "detail": "high" if detail == "original" else detail},
    }


def _file(part: InputFile, param: str) -> Json:
    if part.file_data is UNSET:
        raise _without(part.file_id if part.file_url is UNSET else part.file_url, "file_data", param)
    named = {} if part.filename is UNSET else {"filename": part.filename}
    return {"type": "file", "file": {**named, "file_data": part.file_data}}


def _without(elsewhere: str | UnsetType, wanted: str, param: str) -> InvalidValue | UnsupportedParameter:
    if elsewhere is UNSET:
        return InvalidValue(f"The part has no {wanted}.", param=param)
    return UnsupportedParameter(f"This server keeps and fetches no files: send the data as {wanted}.", param=param)
