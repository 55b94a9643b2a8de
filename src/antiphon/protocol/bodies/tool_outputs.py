"""What a client sends for a response that waits for its tools, and what it is answered."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import InvalidValue, MissingParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_output
from antiphon.protocol.decoding.codec import Shape, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls, normalise_output
from antiphon.protocol.types.parts import ToolOutputPart


class SubmitToolOutput(Struct, kw_only=True):
    """The output of one call, named by the `call_id` of its item; `tool_call_id` is another word for that."""

    call_id: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    output: str | list[ToolOutputPart]


class ToolOutputTaken(Struct, kw_only=True):
    id: str  # of the response
    status: Literal["in_progress"] = "in_progress"


class Submitted(Struct, frozen=True):
    call_id: str
    param: str  # the field that named it
    output: str | list[ToolOutputPart]
    ignored: list[str]  # names of fields that nobody knows


_submit = Shape(SubmitToolOutput)


def decode_tool_output(body: bytes, limits: Limits) -> Submitted:
    """Whatever may stand in the output of a `function_call_output` item may stand here."""
    raw = decode_object(body, limits)
    drop_nulls(raw)
    _submit.long_words.check(raw, len(body))
    normalise_output(raw)
    asked, ignored = _submit.read(raw, limits)
    check_output(asked.output, "output")
    return Submitted(*_call_id(asked), asked.output, ignored)


def _call_id(asked: SubmitToolOutput) -> tuple[str, str]:
    """And the field that it stands in."""
    if isinstance(asked.tool_call_id, str):
        if asked.call_id not in (UNSET, asked.tool_call_id):
            raise InvalidValue("'call_id' and 'tool_call_id' name two different calls.", param="call_id")
        return asked.tool_call_id, "tool_call_id"
    if isinstance(asked.call_id, str):
        return asked.call_id, "call_id"
    raise MissingParameter("Missing required parameter: 'tool_call_id'.", param="tool_call_id")
