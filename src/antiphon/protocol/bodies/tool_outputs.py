"""Tool outputs that a client submits to a waiting response, and the reply."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import InvalidValue, missing_parameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_output
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.decoding.normalise import drop_nulls, normalise_output
from antiphon.protocol.types.parts import ToolOutputPart
from antiphon.protocol.types.tools import Json


class SubmitToolOutput(Struct, kw_only=True):
    """The output of one tool call, identified by the `call_id` of its item; `tool_call_id` is an alias."""

    call_id: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    output: str | list[ToolOutputPart]


class ToolOutputTaken(Struct, kw_only=True):
    id: str  # id of the response
    status: Literal["in_progress"] = "in_progress"


class SubmittedToolOutput(Struct, frozen=True):
    call_id: str
    param: str  # the field that holds the call id
    output: str | list[ToolOutputPart]
    ignored: list[str]  # names of unknown fields


def _normalise(body: Json) -> None:
    drop_nulls(body)
    normalise_output(body)


_decoder = RequestDecoder(SubmitToolOutput, _normalise)


def decode_tool_output(body: bytes, limits: Limits) -> SubmittedToolOutput:
    """Decode the body. `output` accepts the same values as in a `function_call_output` item."""
    request, ignored = _decoder.decode_body(body, limits)
    check_output(request.output, "output")
    return SubmittedToolOutput(*_resolve_call_id(request), request.output, ignored)


def _resolve_call_id(request: SubmitToolOutput) -> tuple[str, str]:
    """Return the call id and the name of the field that holds it."""
    if isinstance(request.tool_call_id, str):
        if request.call_id not in (UNSET, request.tool_call_id):
            raise InvalidValue("'call_id' and 'tool_call_id' name two different calls.", param="call_id")
        return request.tool_call_id, "tool_call_id"
    if isinstance(request.call_id, str):
        return request.call_id, "call_id"
    raise missing_parameter("tool_call_id")
