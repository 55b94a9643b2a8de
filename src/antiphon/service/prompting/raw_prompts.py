"""A prompt that the caller wrote whole → Work: no history, no template, nothing to be read out of the answer."""

from antiphon.agent.tool_resolver import Declared
from antiphon.core.prompt import TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.registry import load_parser
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.model_io.models import Served
from antiphon.service.model_io.sampling import constraint, sampling
from antiphon.service.prompting.prepare import OutputTokens, Prepared

USUAL = 16  # tokens of a completion that says nothing about it, as everywhere


async def prepare_prompt(
    decoded: Decoded, prompt: TextPrompt | TokenPrompt, served: Served, able: Capabilities, room: OutputTokens
) -> Prepared:
    _refuse_kind(prompt, served, able)
    request = decoded.request
    tokens = await _tokens(prompt, served, able)
    asked = room.allowed(request.max_output_tokens or room.default or USUAL)
    if tokens is not None and able.context is not None:
        if tokens >= able.context:
            raise _too_long(tokens, able.context)
        asked = min(asked or USUAL, able.context - tokens)
    work = Work(
        model=served.model,
        prompt=prompt,
        sampling=sampling(request, decoded.sent, asked),
        constraint=constraint(request),
        cache_key=request.prompt_cache_key,
        affinity=request.prompt_cache_key,
    )
    return Prepared(
        engine=served.engine,
        work=work,
        parser=load_parser("raw")(prompt),
        declared=Declared({}),
        ignored=(),
        tokens=tokens,
    )


def _refuse_kind(prompt: TextPrompt | TokenPrompt, served: Served, able: Capabilities) -> None:
    kinds = {able.prompt, *able.takes}
    if kinds == {"chat"}:
        raise UnsupportedParameter(
            f"This model on the {served.engine.name} engine takes chats only: use /v1/chat/completions.", param="model"
        )
    kind = "text" if isinstance(prompt, TextPrompt) else "tokens"
    if kind not in kinds:
        raise UnsupportedParameter(
            f"This model on the {served.engine.name} engine takes no {'texts' if kind == 'text' else 'ids of tokens'}.",
            param="prompt",
        )


async def _tokens(prompt: TextPrompt | TokenPrompt, served: Served, able: Capabilities) -> int | None:
    """None: it fits, or nobody can tell."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.tokens)
    size = sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in prompt.segments])
    if able.context is None or not able.counts or size < able.context:
        return None
    return await served.engine.count(served.model, prompt)


def _too_long(tokens: int, context: int) -> ContextTooLong:
    return ContextTooLong(
        f"The prompt has {tokens} tokens, but this model's context has room for {context}, the answer included.",
        param="prompt",
    )
