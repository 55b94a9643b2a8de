"""A model as resolved for a request, its output limits, its use by one request, and the adapter for it.

The adapter for models that are rendered here needs jinja2 (2 MiB); it is imported in a thread when such a model is
first requested (`_preload`).
"""

import asyncio
from functools import cache
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import Sampling
from antiphon.engines.base import Capabilities, Engine
from antiphon.parsers.detection import (
    ModelOutputFormat,
    detect_output_format,
    get_configured_format,
    is_reasoning_model,
)
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.model_io.adapter import ChatModelAdapter, ModelAdapter, make_sampling
from antiphon.service.model_io.harmony import HarmonyModelAdapter, extend_harmony_capabilities

_EFFORT = frozenset({"reasoning.effort"})
_REPEATED_FIELDS = frozenset({"max_output_tokens", "temperature", "top_p"})
_DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # of the sampling
_NO_FORMAT = ModelOutputFormat(calls=None)  # the operator has named no format


class OutputTokenLimits(Struct, frozen=True, kw_only=True):
    """Default and maximum number of output tokens."""

    default: int | None = None
    maximum: int | None = None

    def resolve(self, requested: int | None) -> int | None:
        """Return the output tokens of a request within the maximum; None: unlimited."""
        tokens = self.default if requested is None else requested
        return tokens if self.maximum is None else min(tokens or self.maximum, self.maximum)


class ServedModel(Struct, frozen=True):
    """A model as resolved for a request: the client's name for it, its name at the engine, and the engine."""

    name: str
    model: str
    engine: Engine
    output_limits: OutputTokenLimits | None = None  # None: the planner's default

    async def capabilities(self) -> Capabilities:
        """Return the engine's capabilities, extended by those of the model adapter."""
        capabilities = await self.engine.capabilities(self.model)
        if capabilities.level != "chat":
            await _preload()
        return _extend_capabilities(capabilities, self.model)


class ModelTarget(Struct, frozen=True):
    """The model of a request, with the capabilities and sampling parameters that apply to it."""

    served: ServedModel
    capabilities: Capabilities
    max_tokens: int | None  # output tokens; None: as many as fit
    sampling: Sampling  # with that limit
    earlier_param: str  # the request field that refers to the items before the input


def apply_defaults(
    decoded: DecodedRequest, served: ServedModel, capabilities: Capabilities, default_limits: OutputTokenLimits
) -> DecodedRequest:
    """Set what the request leaves open to the defaults of the operator and of the model, within the operator's maximum.

    The Response repeats these values. Defaults of fields that OpenAI's API does not have are not repeated.
    """
    request, defaults = decoded.request, capabilities.default_sampling
    limits = served.output_limits or default_limits
    tokens = limits.resolve(request.max_output_tokens or limits.default or defaults.max_tokens)
    changes: dict[str, Any] = {} if tokens == request.max_output_tokens else {"max_output_tokens": tokens}
    is_sampled = (request.best_of or 1) == 1  # a beam search is not
    for name in _DEFAULT_FIELDS if is_sampled else ():
        if getattr(request, name) is None and (value := getattr(defaults, name)) is not None:
            changes[name] = value
    if not changes:
        return decoded
    return replace(decoded, request=replace(request, **changes), sent=decoded.sent | _REPEATED_FIELDS & changes.keys())


def make_target(
    decoded: DecodedRequest, served: ServedModel, capabilities: Capabilities, default_limits: OutputTokenLimits
) -> ModelTarget:
    """`default_limits`: output limits of models that have no own ones."""
    request = decoded.request
    max_tokens = (served.output_limits or default_limits).resolve(request.max_output_tokens)
    earlier_param = "previous_response_id" if request.conversation is None else "conversation"
    sampling = make_sampling(request, decoded.sent, max_tokens, capabilities.supported_fields)
    return ModelTarget(served, capabilities, max_tokens, sampling, earlier_param)


async def _preload() -> None:
    """Import the raw adapter in a thread, so that the event loop is not blocked by it later."""
    if not _load_raw_module.cache_info().currsize:
        await asyncio.to_thread(_load_raw_module)


@cache
def _load_raw_module() -> Any:
    return import_module("antiphon.service.model_io.raw")


def make_adapter(request: CreateResponse, capabilities: Capabilities, model: str) -> ModelAdapter:
    """`model`: its name at the engine."""
    if capabilities.level == "chat":
        return ChatModelAdapter(request, capabilities, get_configured_format(capabilities.parser_choice))
    output_format = _detect_engine_format(capabilities, model)
    if output_format.harmony:
        return HarmonyModelAdapter(request, capabilities)
    adapter: ModelAdapter = _load_raw_module().RawModelAdapter(request, capabilities, output_format)
    return adapter


def _extend_capabilities(capabilities: Capabilities, model: str) -> Capabilities:
    """Return the engine's capabilities, extended by those of the model adapter."""
    if capabilities.template is not None:
        capabilities = _load_raw_module().add_effort_support(capabilities)
    output_format = find_output_format(capabilities, model)
    if output_format is not None and output_format.harmony:
        return extend_harmony_capabilities(capabilities)
    if not capabilities.takes_effort and "reasoning.effort" in capabilities.supported_fields:
        capabilities = _check_effort(capabilities, model)
    if output_format is None:
        return capabilities
    if output_format.calls is None or "tools" in capabilities.supported_fields:
        return capabilities
    return replace(capabilities, supported_fields=capabilities.supported_fields | {"tools"})


def _check_effort(capabilities: Capabilities, model: str) -> Capabilities:
    """Decide about `reasoning.effort` for a model that may not take it.

    A model that reasons in any case does so without it, and one of which nothing is known may ignore it: it is reported
    as ignored. For a model that does not reason it is unsupported.
    """
    reasons = "reasoning" in capabilities.parsers or is_reasoning_model(model, capabilities.parser_choice)
    if capabilities.takes_effort is None and reasons:
        return capabilities
    if capabilities.takes_effort is None or reasons:
        return replace(capabilities, unconfirmed_fields=_EFFORT)
    reason = {"reasoning.effort": "The model's chat template has no variable for it."}
    return replace(
        capabilities,
        supported_fields=capabilities.supported_fields - _EFFORT,
        unsupported_reasons=capabilities.unsupported_reasons | reason,
    )


def find_output_format(capabilities: Capabilities, model: str) -> ModelOutputFormat | None:
    """Return the output format that is parsed here; None if the engine parses the output."""
    if capabilities.level != "chat":
        return _detect_engine_format(capabilities, model)
    output_format = get_configured_format(capabilities.parser_choice)
    return None if output_format == _NO_FORMAT else output_format


def _detect_engine_format(capabilities: Capabilities, model: str) -> ModelOutputFormat:
    template = capabilities.template_source if capabilities.template is None else capabilities.template.source
    return detect_output_format(model, capabilities.architecture, template, capabilities.parser_choice)
