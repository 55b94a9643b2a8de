"""Raw prompts: a complete prompt → GenerationRequest, without history, template or output parsing."""

from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.config.areas import CacheKeyUse
from antiphon.core.prompt import GenerationRequest, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.raw import RawParser
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.model_io.adapter import make_constraint, make_sampling
from antiphon.service.model_io.served_model import ModelTarget, OutputTokenLimits, ServedModel
from antiphon.service.prompting.engine_fields import apply_engine_fields
from antiphon.service.prompting.prepared_request import PreparedPrompt, measure_bytes

DEFAULT_MAX_TOKENS = 16  # default of OpenAI's completions API


async def prepare_prompt(
    tenant: str,
    decoded: DecodedRequest,
    prompt: TextPrompt | TokenPrompt,
    target: ModelTarget,
    default_limits: OutputTokenLimits,
    cache_key_use: CacheKeyUse,
) -> PreparedPrompt:
    """`default_limits`: output limits of models that have no own ones."""
    served, capabilities, request = target.served, target.capabilities, decoded.request
    _check_prompt_kind(prompt, served, capabilities)
    output_limits = served.output_limits or default_limits
    tokens = await _count_tokens(prompt, served, capabilities)
    max_tokens = output_limits.resolve(request.max_output_tokens or output_limits.default or DEFAULT_MAX_TOKENS)
    if tokens is not None and capabilities.context is not None:
        if tokens >= capabilities.context:
            limit = f"this model's context holds {capabilities.context} including the answer"
            raise ContextTooLong(f"The prompt has {tokens} tokens, but {limit}.", param="prompt")
        max_tokens = min(max_tokens or DEFAULT_MAX_TOKENS, capabilities.context - tokens)
    generation = GenerationRequest(
        model=served.model,
        prompt=prompt,
        sampling=make_sampling(request, decoded.sent, max_tokens, capabilities.supported_fields),
        constraint=make_constraint(request),
        cache_key=request.prompt_cache_key,
        affinity=request.prompt_cache_key,
    )
    return PreparedPrompt(
        engine=served.engine,
        generation=apply_engine_fields(tenant, request, generation, cache_key_use),
        parser=RawParser(prompt),
        tool_resolver=ToolCallResolver({}),
        ignored=(),
        tokens=tokens,
    )


def _check_prompt_kind(prompt: TextPrompt | TokenPrompt, served: ServedModel, capabilities: Capabilities) -> None:
    kinds = {capabilities.level, *capabilities.other_levels}
    if kinds == {"chat"}:
        raise UnsupportedParameter(
            f"This model on the {served.engine.name} engine accepts only chats: use /v1/chat/completions.",
            param="model",
        )
    kind = "text" if isinstance(prompt, TextPrompt) else "tokens"
    if kind not in kinds:
        raise UnsupportedParameter(
            f"This model on the {served.engine.name} engine does not accept "
            f"{'texts' if kind == 'text' else 'token ids'}.",
            param="prompt",
        )


async def _count_tokens(
    prompt: TextPrompt | TokenPrompt, served: ServedModel, capabilities: Capabilities
) -> int | None:
    """Count the prompt's tokens; None if it certainly fits or the engine cannot count."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    if (
        capabilities.context is None
        or not capabilities.can_count_tokens
        or measure_bytes(prompt) < capabilities.context
    ):
        return None
    return await served.engine.count_tokens(served.model, prompt)
