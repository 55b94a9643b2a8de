"""What was asked for and cannot be honoured is refused by name, before any work; nothing is dropped in silence.

OpenAI's own knobs that change nothing about an answer here are accepted and named in `ignored`.
"""

from msgspec import UNSET

from antiphon.engines.base import Capabilities
from antiphon.errors import (
    InvalidValue,
    MissingParameter,
    UnknownConversation,
    UnknownPrevious,
    UnsupportedParameter,
)
from antiphon.protocol.types.items import CompactionTrigger, ItemReference
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import StructuralTagFormat, TextFormat
from antiphon.service.model_io.sampling import wants_logprobs
from antiphon.service.prompting.warmup import warms

# A value that asks for nothing special is honoured by everyone.
_SAMPLING: dict[str, object] = {
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "stop": None,
    "include_stop_str_in_output": False,
    "seed": None,
    "ignore_eos": False,
    "n": 1,
    "best_of": 1,
    "length_penalty": None,
    "skip_special_tokens": True,
    "chat_template_kwargs": None,
    "num_assistant_tokens": None,
    "assistant_confidence_threshold": None,
    "max_ngram_size": None,
    # With --compat off.
    "request_id": None,
    "priority": 0,
    "cache_salt": None,
    "mm_processor_kwargs": {},
}
_NOT_YET = {"multi_agent": "Multi-agent responses are not supported."}
_NOTHING = "This server keeps nothing (--disable-store)"
_TRIGGER = frozenset({CompactionTrigger})  # is no word
_KNOBS = frozenset({"prompt_cache_retention", "prompt_cache_options", "moderation", "image", "access_programs"})


def refuse_unserved(request: CreateResponse, sent: frozenset[str]) -> None:
    """What no engine could make up for."""
    for name in sorted(_NOT_YET.keys() & sent):  # so that the same request is always refused in the same words
        if getattr(request, name):
            raise UnsupportedParameter(_NOT_YET[name], param=name)


def refuse_unsaid(request: CreateResponse) -> None:
    """What nothing could be said to."""
    if request.previous_response_id or request.conversation or not _TRIGGER.issuperset(map(type, request.input)):
        return
    if not (request.instructions and warms(request)):
        raise MissingParameter("Missing required parameter: 'input'.", param="input")


def refuse_unstored(request: CreateResponse, stores: bool, remembered: bool = False) -> None:
    """What needs a store, where there is none or none is wanted. `remembered`: what came before is known without."""
    if request.background and not (stores and request.store is not False):
        reason = "`store` must not be false" if stores else "this server keeps nothing (--disable-store)"
        raise UnsupportedParameter(f"A background response has to be stored: {reason}.", param="background")
    if request.wait_for_tool_outputs:
        _refuse_waiting(request, stores)
    if stores:
        return
    if request.previous_response_id is not None and not remembered:
        raise UnknownPrevious(f"{_NOTHING}: send the whole conversation in `input`.", param="previous_response_id")
    if request.conversation is not None:
        raise UnknownConversation(f"{_NOTHING}: send the whole conversation in `input`.", param="conversation")
    for index, item in enumerate(request.input):
        if type(item) is ItemReference:
            raise InvalidValue(f"{_NOTHING}: send the item itself.", param=f"input[{index}]")


def refuse_unhonoured(request: CreateResponse, sent: frozenset[str], able: Capabilities, engine: str) -> None:
    """What this model on this engine does not do."""
    if "generate" not in able.does:
        raise UnsupportedParameter("This model does not generate: see its `does` at /v1/capabilities.", param="model")
    for name in sorted((_SAMPLING.keys() & sent) - able.honours):
        if getattr(request, name) != _SAMPLING[name]:
            raise unsupported(name, able, engine)
    _refuse_format(request, able, engine)
    if (request.n or 1) > 1:
        _refuse_several(request, able, engine)
    if wants_logprobs(request) and "top_logprobs" not in able.honours:
        raise unsupported("top_logprobs" if request.top_logprobs else "include", able, engine)
    if request.reasoning.effort not in (None, "none") and "reasoning.effort" not in able.honours:
        raise unsupported("reasoning.effort", able, engine)


def ignored(request: CreateResponse, sent: frozenset[str]) -> list[str]:
    """Accepted fields that change nothing here."""
    names = sorted(name for name in _KNOBS & sent if getattr(request, name) not in ("auto", "default"))
    if request.reasoning.mode not in (UNSET, "standard"):
        names.append("reasoning.mode")
    return names


def only_messages() -> UnsupportedParameter:
    return UnsupportedParameter(
        "Several answers (`n`) are messages: nothing can be called or done beside them. Send `n`: 1.",
        param="n",
    )


def _refuse_several(request: CreateResponse, able: Capabilities, engine: str) -> None:
    """They are put in order by how likely they are."""
    if request.tools or request.context_management:
        raise only_messages()
    if (request.best_of or 1) > 1:
        raise UnsupportedParameter("`best_of` gives one answer: send `n` without it.", param="best_of")
    if "top_logprobs" not in able.honours:
        raise unsupported("top_logprobs", able, engine, "n")


def _refuse_waiting(request: CreateResponse, stores: bool) -> None:
    if not (request.stream or request.background):
        reason = "send `stream: true` or `background: true`"
    elif not stores:
        reason = "this server keeps nothing (--disable-store)"
    elif request.store is False:
        reason = "`store` must not be false"
    else:
        return
    raise UnsupportedParameter(
        f"A response that waits for tool outputs is streamed or in the background, and stored: {reason}.",
        param="wait_for_tool_outputs",
    )


def _refuse_format(request: CreateResponse, able: Capabilities, engine: str) -> None:
    wanted = request.text.format
    if type(wanted) is TextFormat:
        return
    if isinstance(wanted, StructuralTagFormat) and "structural_tag" not in able.honours:
        raise unsupported("structural_tag", able, engine, "text.format")
    if "text.format" not in able.honours:
        raise unsupported("text.format", able, engine)


def unsupported(name: str, able: Capabilities, engine: str, param: str = "") -> UnsupportedParameter:
    """`param`: the field by which it was asked for, if that is not its name."""
    reason = able.lacks.get("top_logprobs" if name == "include" else name, "")
    sentence = f"'{param or name}' is not supported by this model on the {engine} engine."
    return UnsupportedParameter(f"{sentence} {reason}".rstrip(), param=param or name)
