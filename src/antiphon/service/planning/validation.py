"""Validation: unsupported fields are rejected by name before any work; none is dropped silently.

OpenAI fields that cannot affect the result here are accepted and reported as ignored.
"""

from msgspec import UNSET

from antiphon.config.areas import CacheKeyUse
from antiphon.engines.base import Capabilities
from antiphon.errors import InvalidValue, MissingParameter, UnknownConversation, UnknownPrevious, UnsupportedParameter
from antiphon.protocol.decoding.stored_items import is_reference
from antiphon.protocol.types.items import CompactionTrigger
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import StructuralTagFormat, TextFormat
from antiphon.service.model_io.adapter import find_logprobs_field
from antiphon.service.prompting.prepared_request import is_warmup
from antiphon.service.tool_loop.moderation import NO_MODERATOR, Moderator

# Values that request nothing special; every engine accepts these.
_NEUTRAL_VALUES: dict[str, object] = {
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "stop", "seed", "length_penalty"), None),
    **dict.fromkeys(("chat_template_kwargs", "num_assistant_tokens", "max_ngram_size"), None),
    **dict.fromkeys(("repetition_penalty", "n", "best_of"), 1),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0.0),
    **dict.fromkeys(("include_stop_str_in_output", "ignore_eos"), False),
    "assistant_confidence_threshold": None,
    "skip_special_tokens": True,
    # Accepted only with --compat off.
    "request_id": None,
    "priority": 0,
    "cache_salt": None,
    "mm_processor_kwargs": {},
}
_UNSUPPORTED = {"multi_agent": "Multi-agent responses are not supported."}
_NO_STORE = "This server stores nothing (--disable-store)"
_TRIGGER_ONLY = frozenset({CompactionTrigger})  # input that contains no message
_IGNORED_FIELDS = frozenset({"prompt_cache_retention", "prompt_cache_options", "image", "access_programs"})
_NO_CHANGE = ("auto", "default", {"prewarm": True}, {"prewarm": False})  # a warm-up is honoured (`is_warmup`)


def reject_unsupported_fields(request: CreateResponse, sent: frozenset[str]) -> None:
    """Reject fields that no engine supports."""
    for name in sorted(_UNSUPPORTED.keys() & sent):  # sorted, so that equal requests get equal errors
        if getattr(request, name):
            raise UnsupportedParameter(_UNSUPPORTED[name], param=name)


def require_moderator(moderator: Moderator | None, param: str) -> Moderator:
    if moderator is None:
        raise UnsupportedParameter(NO_MODERATOR, param=param)
    return moderator


def require_input(request: CreateResponse) -> None:
    """Reject a request without input, conversation or previous response; a warm-up with instructions needs none."""
    if request.previous_response_id or request.conversation or not _TRIGGER_ONLY.issuperset(map(type, request.input)):
        return
    if not (request.instructions and is_warmup(request)):
        raise MissingParameter("Missing required parameter: 'input'.", param="input")


def check_store_use(request: CreateResponse, store_enabled: bool, cached: bool = False) -> None:
    """Reject uses of the store if the server or the request disables it.

    `cached`: the previous response is cached by the connection, so the store is not needed to continue it.
    """
    if request.background and not (store_enabled and request.store is not False):
        reason = "`store` must not be false" if store_enabled else "this server stores nothing (--disable-store)"
        raise UnsupportedParameter(f"A background response must be stored: {reason}.", param="background")
    if request.wait_for_tool_outputs:
        _check_tool_output_wait(request, store_enabled)
    if store_enabled:
        return
    if request.previous_response_id is not None and not cached:
        raise UnknownPrevious(f"{_NO_STORE}: send the complete conversation in `input`.", param="previous_response_id")
    if request.conversation is not None:
        raise UnknownConversation(f"{_NO_STORE}: send the complete conversation in `input`.", param="conversation")
    for index, item in enumerate(request.input):
        if is_reference(item):
            raise InvalidValue(f"{_NO_STORE}: send the item itself.", param=f"input[{index}]")


def reject_unsupported_by_engine(
    request: CreateResponse, sent: frozenset[str], capabilities: Capabilities, engine: str
) -> None:
    """Reject fields that this model on this engine does not support."""
    if "generate" not in capabilities.tasks:
        raise UnsupportedParameter("This model does not generate: see its `does` at /v1/capabilities.", param="model")
    unsupported = sent.intersection(_NEUTRAL_VALUES).difference(capabilities.supported_fields)
    for name in sorted(unsupported):
        if getattr(request, name) != _NEUTRAL_VALUES[name]:
            raise unsupported_error(name, capabilities, engine)
    _check_format(request, capabilities, engine)
    if (request.n or 1) > 1 and (request.tools or request.context_management):
        raise choices_error()
    needed = "top_logprobs" if request.top_logprobs else "logprobs"
    if (field := find_logprobs_field(request)) and needed not in capabilities.supported_fields:
        raise unsupported_error("top_logprobs", capabilities, engine, field)
    if request.reasoning.effort not in (None, "none") and "reasoning.effort" not in capabilities.supported_fields:
        raise unsupported_error("reasoning.effort", capabilities, engine)
    if "truncation" in sent and request.truncation == "auto" and capabilities.context is None:
        raise UnsupportedParameter(
            "The context size of this model is unknown, so 'truncation' cannot be 'auto'. Send 'disabled', or let the"
            " operator set --context.",
            param="truncation",
        )


def reject_unstored_turn(request: CreateResponse) -> None:
    """Reject a turn that would not be added to its conversation. Counting the tokens of such a turn stores nothing."""
    if request.conversation is not None and request.store is False:
        raise UnsupportedParameter(
            "A turn of a conversation must be stored: `store` must not be false. Or send the history in `input`.",
            param="store",
        )


def list_ignored_fields(
    request: CreateResponse, sent: frozenset[str], capabilities: Capabilities, cache_key_use: CacheKeyUse
) -> list[str]:
    """Return the names of accepted fields that have no effect."""
    names = []
    if not sent.isdisjoint(_IGNORED_FIELDS):
        names = sorted(name for name in _IGNORED_FIELDS & sent if getattr(request, name) not in _NO_CHANGE)
    if request.reasoning.mode not in (UNSET, "standard"):
        names.append("reasoning.mode")
    if request.stream_options is not None and not (request.stream or request.background):
        names.append("stream_options")
    if request.reasoning.effort not in (None, "none") and "reasoning.effort" in capabilities.unconfirmed_fields:
        names.append("reasoning.effort")
    if request.prompt_cache_key is not None and not _uses_cache_key(request, capabilities, cache_key_use):
        names.append("prompt_cache_key")
    return names


def _uses_cache_key(request: CreateResponse, capabilities: Capabilities, cache_key_use: CacheKeyUse) -> bool:
    """Return whether `prompt_cache_key` is sent to the engine, separates its cache, or selects an engine."""
    if request.cache_salt is not None:
        return False  # it takes precedence
    has_use = "cache_salt" in capabilities.supported_fields if cache_key_use == "salt" else capabilities.replicas > 1
    return has_use or "prompt_cache_key" in capabilities.supported_fields


def choices_error() -> UnsupportedParameter:
    return UnsupportedParameter(
        "With `n` > 1 only messages are generated; tools and compaction are not supported. Send `n`: 1.", param="n"
    )


def _check_tool_output_wait(request: CreateResponse, store_enabled: bool) -> None:
    if not (request.stream or request.background):
        reason = "send `stream: true` or `background: true`"
    elif not store_enabled:
        reason = "this server stores nothing (--disable-store)"
    elif request.store is False:
        reason = "`store` must not be false"
    else:
        return
    raise UnsupportedParameter(
        f"A response that waits for tool outputs must be stored, and either streamed or in the background: {reason}.",
        param="wait_for_tool_outputs",
    )


def _check_format(request: CreateResponse, capabilities: Capabilities, engine: str) -> None:
    text_format = request.text.format
    if type(text_format) is TextFormat:
        return
    if isinstance(text_format, StructuralTagFormat) and "structural_tag" not in capabilities.supported_fields:
        raise unsupported_error("structural_tag", capabilities, engine, "text.format")
    if "text.format" not in capabilities.supported_fields:
        raise unsupported_error("text.format", capabilities, engine)


def unsupported_error(name: str, capabilities: Capabilities, engine: str, param: str = "") -> UnsupportedParameter:
    """`param`: the request field, if it differs from the feature `name`."""
    reason = capabilities.unsupported_reasons.get(name, "")
    sentence = f"'{param or name}' is not supported by this model on the {engine} engine."
    return UnsupportedParameter(f"{sentence} {reason}".rstrip(), param=param or name)
