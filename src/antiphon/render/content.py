"""Content parts → chat content: a string if every part is text, otherwise a list of chat parts.

Files are rendered as text for every engine. Images are sent as data, never as a URL that an engine would fetch. Parts
that the engine does not support are rejected with the name of the part.

Images and files must be fetched, checked or parsed first, which render cannot do:

    render ── missing ──▶ service/attachments/attachments.py ── found ──▶ render again

Attachments that are not available yet are recorded in `missing` and rendered as an empty string. A prompt is complete
only if nothing is missing.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import UNSET, Struct

from antiphon.core.data_urls import Correction, UnreadableMedia
from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.types import parts as pt
from antiphon.protocol.types.tools import Tool, has_auto_container
from antiphon.render.audio import check_audio

# (part index, field suffix) → parameter name; an empty suffix names the part itself
ParamFormatter = Callable[[int, str], str]
Features = frozenset[str]
_NonTextPart = pt.RefusalPart | pt.InputImage | pt.Screenshot | pt.InputFile | pt.InputAudio


class ImageAttachment(Struct, frozen=True):
    url: str = ""
    file_id: str | None = None  # set instead of `url`


class FileAttachment(Struct, frozen=True):
    name: str = ""
    data: str = ""
    url: str | None = None  # set instead of `data`
    file_id: str | None = None  # likewise
    in_container: bool = False  # code can read it, and the prompt names its path


AttachmentSource = ImageAttachment | FileAttachment


class AttachmentRequest(Struct):
    """An attachment that must be resolved before the prompt can be rendered."""

    param: str  # request field that holds the attachment
    uses: int = 0  # number of occurrences in the prompt


class AttachmentLookup(Struct, eq=False):
    """Resolved attachments of one prompt, and those that are still missing."""

    found: dict[AttachmentSource, str] = {}  # images as data URLs, files as text
    corrections: dict[AttachmentSource, Correction] = {}  # that the engine's request applies to large data URLs
    defers_corrections: bool = False
    missing: dict[AttachmentSource, AttachmentRequest] = {}

    def resolve(self, source: AttachmentSource, param: str) -> str:
        """Return the resolved content; record the source as missing and return "" if there is none yet."""
        if (found := self.found.get(source)) is None:
            self.missing.setdefault(source, AttachmentRequest(param)).uses += 1
            return ""
        return found


class ContentRenderer(Struct, frozen=True, eq=False):
    """Renders content parts for an engine with the given features, using resolved attachments."""

    _features: Features
    _attachments: AttachmentLookup
    _tools: Sequence[Tool] = ()  # of the request

    def render(self, parts: Sequence[pt.MessagePart], separator: str, param: ParamFormatter) -> str | list[Json]:
        """Render the parts; text-only content is joined with `separator`."""
        rendered = [
            part.text
            if isinstance(part, (pt.InputText, pt.OutputText, pt.PlainText))
            else self._render_part(part, index, param)
            for index, part in enumerate(parts)
        ]
        texts = [part for part in rendered if isinstance(part, str)]
        if len(texts) == len(rendered):
            return separator.join(texts)
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in rendered]

    def _render_part(self, part: _NonTextPart, index: int, param: ParamFormatter) -> str | Json:
        match part:
            case pt.RefusalPart():
                return part.refusal
            case pt.InputImage() | pt.Screenshot():
                self._require("input_image", param(index, ""))
                return self._render_image(part, index, param)
            case pt.InputFile():
                return self._render_file(part, index, param)
            case pt.InputAudio():
                self._require("input_audio", param(index, ""))
                audio = part.input_audio
                try:
                    check_audio(audio.data, audio.format)
                except UnreadableMedia as error:
                    raise InvalidValue(f"The audio cannot be read: {error}", param=param(index, ".input_audio.data"))
                return {"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}}
            case _:
                assert_never(part)

    def _require(self, kind: str, param: str) -> None:
        if kind not in self._features:
            raise UnsupportedParameter(f"The model does not accept {kind} parts.", param=param)

    def _render_image(self, part: pt.InputImage | pt.Screenshot, index: int, param: ParamFormatter) -> Json:
        if part.image_url is not UNSET:
            source, field = ImageAttachment(part.image_url), ".image_url"
        elif part.file_id is not UNSET:
            source, field = ImageAttachment(file_id=part.file_id), ".file_id"
        else:
            raise InvalidValue("The part has no image_url.", param=param(index, ""))
        url = self._attachments.resolve(source, param(index, field))
        detail = "auto" if part.detail is UNSET else part.detail
        image = {"url": url, "detail": "high" if detail == "original" else detail}
        correction = self._attachments.corrections.get(source)
        return {"type": "image_url", "image_url": image} | ({"correction": correction} if correction else {})

    def _render_file(self, part: pt.InputFile, index: int, param: ParamFormatter) -> str:
        name, is_shown = "" if part.filename is UNSET else part.filename, has_auto_container(self._tools)
        if part.file_data is not UNSET:
            source = FileAttachment(name, data=part.file_data, in_container=is_shown)
            return self._attachments.resolve(source, param(index, ".file_data"))
        if part.file_url is not UNSET:
            return self._attachments.resolve(FileAttachment(name, url=part.file_url), param(index, ".file_url"))
        if part.file_id is not UNSET:
            source = FileAttachment(name, file_id=part.file_id, in_container=is_shown)
            return self._attachments.resolve(source, param(index, ".file_id"))
        raise InvalidValue("The part has no file_data.", param=param(index, ""))
