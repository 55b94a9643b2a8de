"""Token counts of prompts: counted by the engine, or estimated.

The estimate is one token per four bytes of text, plus four tokens per message.
"""

import msgspec
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.service.model_io.served_model import ServedModel
from antiphon.service.prompting.prepare import PreparedPrompt, measure_bytes

_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4


async def count_tokens(prepared: PreparedPrompt, served: ServedModel, capabilities: Capabilities) -> int | None:
    """Count the tokens; None if the engine cannot count."""
    prompt = _add_effort(prepared.generation)
    if prepared.tokens is not None and prompt is prepared.generation.prompt:
        return prepared.tokens
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    return await served.engine.count_tokens(served.model, prompt) if capabilities.can_count_tokens else None


async def count_or_estimate(prepared: PreparedPrompt, served: ServedModel, capabilities: Capabilities) -> int:
    """Count the tokens, or estimate them if the engine cannot count."""
    tokens = await count_tokens(prepared, served, capabilities)
    return estimate_tokens(prepared.generation.prompt) if tokens is None else tokens


def is_surely_below(prompt: Prompt, tokens: int) -> bool:
    """Whether the prompt has fewer tokens, decided without counting: no token is shorter than a byte."""
    return measure_bytes(prompt) < tokens


def estimate_tokens(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages=messages, tools=tools):
            size = sum([len(msgspec.json.encode([*message.values()])) for message in messages])
            return -(
                -(size + (len(msgspec.json.encode(tools)) if tools else 0)) // _BYTES_PER_TOKEN
            ) + _TOKENS_PER_MESSAGE * len(messages)
        case TextPrompt(segments=segments):
            return -(
                -sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments]) // _BYTES_PER_TOKEN
            )
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def _add_effort(generation: GenerationRequest) -> Prompt:
    """Add the reasoning effort to the template variables, as engines that render chats do."""
    prompt = generation.prompt
    if generation.effort in (None, "none") or not isinstance(prompt, ChatPrompt):
        return prompt
    return replace(prompt, template_kwargs={"reasoning_effort": generation.effort, **prompt.template_kwargs})
