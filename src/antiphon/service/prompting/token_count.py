"""How many tokens a prompt has: as the engine counts them, or else by an estimate.

Where an engine does not tell, a token is taken for four bytes of the texts, and every message for four tokens more.
"""

import msgspec
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Prompt, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities
from antiphon.service.model_io.models import Served
from antiphon.service.prompting.prepare import Prepared, size_of

_BYTES = 4  # of a token
_MESSAGE = 4  # tokens


async def counted(prepared: Prepared, served: Served, able: Capabilities) -> int | None:
    """None where the engine does not tell."""
    told = _told(prepared.work)
    if prepared.tokens is not None and told is prepared.work.prompt:
        return prepared.tokens
    if isinstance(told, TokenPrompt):
        return len(told.tokens)
    return await served.engine.count(served.model, told) if able.counts else None


async def measured(prepared: Prepared, served: Served, able: Capabilities) -> int:
    tokens = await counted(prepared, served, able)
    return estimate(prepared.work.prompt) if tokens is None else tokens


def surely_less(prompt: Prompt, tokens: int) -> bool:
    """Without counting: no token is shorter than a byte."""
    return size_of(prompt) < tokens


def estimate(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages=messages, tools=tools):
            size = sum([len(msgspec.json.encode([*message.values()])) for message in messages])
            return -(-(size + (len(msgspec.json.encode(tools)) if tools else 0)) // _BYTES) + _MESSAGE * len(messages)
        case TextPrompt(segments=segments):
            return -(-sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments]) // _BYTES)
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def _told(work: Work) -> Prompt:
    """Engines that render chats tell the template the effort too, by the name that templates know."""
    prompt = work.prompt
    if work.effort in (None, "none") or not isinstance(prompt, ChatPrompt):
        return prompt
    return replace(prompt, template_kwargs={"reasoning_effort": work.effort, **prompt.template_kwargs})
