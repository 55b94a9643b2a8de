"""Whom to ask for an answer, and how: what of a call of the model does not depend on what is said to it."""

from msgspec import Struct

from antiphon.agent.output_rules import Rules
from antiphon.core.prompt import Sampling, Work
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import Parser
from antiphon.protocol.decoding.codec import Decoded
from antiphon.render.messages import Frame
from antiphon.service.model_io.models import OutputTokens, Served
from antiphon.service.model_io.sampling import sampling
from antiphon.service.model_io.selection import Heard, Tongue


class Mould(Struct, frozen=True, kw_only=True):
    """A call of the model without what is said to it: how all answers to prompts of this frame are asked for and heard,
    as long as the tongue says these as they are."""

    frame: Frame
    heard: Heard
    reader: type[Parser]
    work: Work  # with the frame for its prompt, for anybody
    bare: bool  # the engine is told nothing that depends on who asks, but for who that is
    rules: Rules | None  # what is demanded of the answer
    grammars: bool  # there are some among these that have to be read first


class Aim(Struct):
    served: Served
    able: Capabilities
    most: int | None  # tokens of an answer; None: as many as there is room for
    sampling: Sampling  # with that bound
    before: str  # the field of the request that items before its input come by
    tongue: Tongue | None = None  # for all of its kind, if there is one
    frame: Frame | None = None  # of prompts whose history declares no tools, once there was one
    mould: Mould | None = None  # for that frame, if the tongue is for all of its kind


def aimed(decoded: Decoded, served: Served, able: Capabilities, usual: OutputTokens) -> Aim:
    """`usual`: how long answers may be, where nothing else is said about the model."""
    request = decoded.request
    most = (served.room or usual).allowed(request.max_output_tokens)
    before = "previous_response_id" if request.conversation is None else "conversation"
    return Aim(served, able, most, sampling(request, decoded.sent, most), before)
