"""Components of items: content parts, annotations and log probabilities.

Throughout this package, fields that are omitted rather than sent as null default to UNSET.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # range that stores and engines support


class TopLogprob(Struct, kw_only=True, gc=False):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(TopLogprob, kw_only=True, gc=False):
    """Log probability of an output token, as in an output_text part."""

    top_logprobs: list[TopLogprob] = []


class TopLogprobDelta(Struct, kw_only=True, gc=False):
    token: str
    logprob: float


class LogprobDelta(TopLogprobDelta, kw_only=True, gc=False):
    """Log probability of an output token, as in text events: without the bytes of the token."""

    top_logprobs: list[TopLogprobDelta] = []


class Tagged(Struct, kw_only=True, tag_field="type"):
    """A member of a union that its `type` identifies: a part, a tool, an event …"""


class FileCitation(Tagged, tag="file_citation", kw_only=True):
    file_id: str
    filename: str = ""
    index: Int64


class UrlCitation(Tagged, tag="url_citation", kw_only=True):
    url: str
    title: str = ""
    start_index: Int64
    end_index: Int64


class ContainerFileCitation(Tagged, tag="container_file_citation", kw_only=True):
    container_id: str
    file_id: str
    filename: str = ""
    start_index: Int64
    end_index: Int64


class FilePath(Tagged, tag="file_path", kw_only=True):
    file_id: str
    index: Int64


Annotation = FileCitation | UrlCitation | ContainerFileCitation | FilePath


class CacheBreakpoint(Struct, kw_only=True):
    mode: Literal["explicit"] = "explicit"
    ttl: Literal["30m", "12h"] | UnsetType = UNSET


class InputText(Tagged, tag="input_text", kw_only=True):
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class InputImage(Tagged, tag="input_image", kw_only=True):
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    detail: Literal["low", "high", "auto", "original"] = "auto"
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class InputFile(Tagged, tag="input_file", kw_only=True):
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class AudioData(Struct, kw_only=True):
    data: str
    format: Literal["mp3", "wav"]


class InputAudio(Tagged, tag="input_audio", kw_only=True):
    """Audio input. Models without audio support reject it by name."""

    input_audio: AudioData
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class OutputText(Tagged, tag="output_text", kw_only=True):
    text: str
    annotations: list[Annotation] = []
    logprobs: list[Logprob] = []


class RefusalPart(Tagged, tag="refusal", kw_only=True):
    refusal: str


class ReasoningText(Tagged, tag="reasoning_text", kw_only=True):
    text: str


class SummaryText(Tagged, tag="summary_text", kw_only=True):
    text: str


class PlainText(Tagged, tag="text", kw_only=True):
    """Text of a conversation message that is marked neither as input nor as output."""

    text: str


class Screenshot(Tagged, tag="computer_screenshot", kw_only=True):
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    detail: Literal["low", "high", "auto", "original"] | UnsetType = UNSET


class ScreenPoint(Struct, kw_only=True):
    x: Int64
    y: Int64


class PointerAction(Tagged, kw_only=True):
    """An action of the mouse at a point; the keys are held meanwhile."""

    x: Int64
    y: Int64
    keys: list[str] | UnsetType = UNSET


class ClickAction(PointerAction, tag="click", kw_only=True):
    button: Literal["left", "right", "wheel", "back", "forward"]


class DoubleClickAction(PointerAction, tag="double_click", kw_only=True): ...


class MoveAction(PointerAction, tag="move", kw_only=True): ...


class ScrollAction(PointerAction, tag="scroll", kw_only=True):
    scroll_x: Int64
    scroll_y: Int64


class DragAction(Tagged, tag="drag", kw_only=True):
    path: list[ScreenPoint]
    keys: list[str] | UnsetType = UNSET


class KeypressAction(Tagged, tag="keypress", kw_only=True):
    keys: list[str]


class TypeAction(Tagged, tag="type", kw_only=True):
    text: str


class ScreenshotAction(Tagged, tag="screenshot", kw_only=True): ...


class WaitAction(Tagged, tag="wait", kw_only=True): ...


_MouseAction = ClickAction | DoubleClickAction | DragAction | MoveAction | ScrollAction
ComputerAction = _MouseAction | KeypressAction | TypeAction | ScreenshotAction | WaitAction
MessagePart = InputText | InputImage | InputFile | InputAudio | OutputText | RefusalPart | PlainText | Screenshot
ToolOutputPart = InputText | InputImage | InputFile
StreamedPart = OutputText | RefusalPart | ReasoningText  # parts of content_part events
