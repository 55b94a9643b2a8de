"""The automatic answer of the fake engine: composed as a complete text, then split into chunks of one token.

A forced tool call has priority over a required format, a format over an optional tool call; without any of them the
answer repeats the input. Nothing is random, so fields that only shape randomness have no effect.
"""

from functools import lru_cache

from msgspec import Struct, json
from msgspec.structs import replace

from antiphon.core.prompt import CallPiece, Chunk, FinishKind, GenerationRequest, Grammar, Json, JsonSchema, Sampling
from antiphon.engines.base import min_limit
from antiphon.engines.fake.prompt_reader import ParsedPrompt, PromptTool
from antiphon.engines.fake.schema_instance import find_grammar_input, find_pattern_match, smallest_instance
from antiphon.engines.fake.tokens import END, count_tokens, encode_text, fake_logprob, filler_text, split_tokens

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_REASONING_SENTENCES = (
    "Let me think.",
    "I have been told something.",
    "I could repeat it.",
    "Would that be an answer?",
    "It would be an honest one.",
    "Then that is what I shall say.",
)
_DEFAULT_MAX_TOKENS = 4096  # tokens to generate with `ignore_eos` and no other limit


class AnswerContent(Struct, frozen=True, kw_only=True):
    """The content of an automatic answer: reasoning, then either text or one tool call."""

    reasoning: str = ""
    text: str = ""
    call: PromptTool | None = None
    unconstrained: bool = False  # no format constrains the text


class AnswerChunks(Struct, frozen=True, kw_only=True):
    chunks: list[Chunk]
    finish: FinishKind
    reasoning_tokens: int = 0
    stop_reason: int | str | None = None  # the client's stop string or stop token id that ended the answer


def compose_answer(request: GenerationRequest, prompt: ParsedPrompt, tokens: int | None) -> AnswerContent:
    """Choose the answer by the first rule that applies; `tokens` is the configured length of unconstrained answers."""
    reasoning = _reasoning_text(request.effort, prompt)
    if prompt.must_call:
        return AnswerContent(reasoning=reasoning, call=prompt.tools[0])
    if isinstance(request.constraint, JsonSchema):
        text = smallest_instance(request.constraint.schema, "text.format.schema")
        return AnswerContent(reasoning=reasoning, text=text)
    if isinstance(request.constraint, Grammar):
        return AnswerContent(reasoning=reasoning, text=find_pattern_match(request.constraint.definition))
    if request.constraint is not None:
        return AnswerContent(reasoning=reasoning, text="{}")
    if prompt.tools and not prompt.tool_outputs:
        return AnswerContent(reasoning=reasoning, call=prompt.tools[0])
    if tokens is not None:
        text = filler_text(tokens)[: tokens * prompt.width]
        return AnswerContent(reasoning=reasoning, text=text, unconstrained=True)
    outputs = prompt.tool_outputs
    echo = f"The tool said: {' '.join(outputs)}" if outputs else f"You said: {prompt.user_text}"
    return AnswerContent(reasoning=reasoning, text=echo, unconstrained=True)


def _reasoning_text(effort: str | None, prompt: ParsedPrompt) -> str:
    """Return reasoning whose length grows with the effort."""
    enabled = effort not in (None, "none") if prompt.enable_thinking is None else prompt.enable_thinking
    if not enabled:
        return ""
    sentences = _EFFORTS.index(effort) + 1 if effort in _EFFORTS else 3
    return " ".join(_REASONING_SENTENCES[:sentences])


def split_answer(
    content: AnswerContent, request: GenerationRequest, prompt: ParsedPrompt, *, raw: bool, room: int | None
) -> AnswerChunks:
    """Split the answer into chunks and apply limits and stop conditions.

    `raw` stands for the text and token levels, where a constraint applies to all output; `room` is the remaining
    context in tokens.
    """
    sampling = request.sampling
    if raw and request.constraint is not None:
        content = replace(content, reasoning="")
    limit = min_limit(sampling.max_tokens, room)
    max_tokens = _DEFAULT_MAX_TOKENS if limit is None else limit
    padded = _pad_to_min_tokens(content, sampling, prompt.width, max_tokens)
    text, reason = _cut_at_stop(padded, sampling, prompt.width)
    if sampling.ignore_eos and content.unconstrained and reason is None:
        text += filler_text(max(0, max_tokens + 1 - len(text) // prompt.width))
    chunks = _raw_chunks(content, text, sampling, prompt.width) if raw else _chat_chunks(content, text, sampling)
    reasoning = _wrap_reasoning(content.reasoning) if raw else content.reasoning
    reasoning_tokens = count_tokens(len(reasoning), prompt.width)
    if limit is not None and len(chunks) > limit:
        return AnswerChunks(chunks=chunks[:limit], finish="length", reasoning_tokens=min(reasoning_tokens, limit))
    finish: FinishKind = "stop" if content.call is None else "tool_calls"
    return AnswerChunks(chunks=chunks, finish=finish, reasoning_tokens=reasoning_tokens, stop_reason=reason)


def _pad_to_min_tokens(content: AnswerContent, sampling: Sampling, width: int, limit: int) -> str:
    """Append filler until the text has `min_tokens` tokens, but at most `limit`."""
    missing = min(sampling.min_tokens or 0, limit) - count_tokens(len(content.text), width)
    padding = filler_text(missing)[: missing * width] if content.unconstrained and missing > 0 else ""
    return content.text + padding


def _cut_at_stop(text: str, sampling: Sampling, width: int) -> tuple[str, int | str | None]:
    """Cut the text at the stop string or token that ends first, or the longer of two, and return which one."""
    if not (sampling.stop or sampling.stop_token_ids):
        return text, None
    start = (sampling.min_tokens or 0) * width
    ends = [
        (at + len(stop), -len(stop), stop) for stop in sampling.stop if stop and (at := text.find(stop, start)) >= 0
    ]
    ends += [(at + 1, -1, text[at]) for at in [_find_stop_token(text, sampling, start)] if at >= 0]
    if not ends:
        return text, None
    end, length, stop = min(ends)
    reason: int | str = stop if stop in sampling.stop else encode_text(stop)[0]
    return text[:end] if sampling.include_stop_str_in_output else text[: end + length], reason


def _find_stop_token(text: str, sampling: Sampling, start: int) -> int:
    """Return the position of the first stop token, or -1. At token level each character is a token."""
    stops = {token for token in sampling.stop_token_ids if token >= 0}
    return next((at for at in range(start, len(text)) if encode_text(text[at])[0] in stops), -1) if stops else -1


def _chat_chunks(content: AnswerContent, text: str, sampling: Sampling) -> list[Chunk]:
    chunks = [Chunk(reasoning=piece) for piece in split_tokens(content.reasoning)] if content.reasoning else []
    if content.call is not None:
        chunks.append(Chunk(calls=(CallPiece(index=0, name=content.call.name),)))
        arguments = split_tokens(_smallest_arguments(content.call.parameters))
        chunks += [Chunk(calls=(CallPiece(index=0, arguments=piece),)) for piece in arguments]
        return chunks
    if sampling.logprobs is None:
        return chunks + _text_chunks(text)
    pieces, top = split_tokens(text), sampling.logprobs
    return chunks + [Chunk(text=piece, logprobs=(fake_logprob(piece, top),)) for piece in pieces]


@lru_cache(maxsize=8)
def _text_chunks(text: str) -> list[Chunk]:
    """Return shared chunks, so that generating load costs the server and not this engine."""
    return [Chunk(text=piece) for piece in split_tokens(text)]


def _raw_chunks(content: AnswerContent, text: str, sampling: Sampling, width: int) -> list[Chunk]:
    ending = "" if sampling.skip_special_tokens else END
    chunks = [Chunk(text=piece) for piece in split_tokens(_wrap_reasoning(content.reasoning) + text + ending, width)]
    for chunk in chunks:
        if width == 1:
            chunk.tokens = tuple(encode_text(chunk.text))
        if sampling.logprobs is not None:
            chunk.logprobs = (fake_logprob(chunk.text, sampling.logprobs),)
    return chunks


def _wrap_reasoning(reasoning: str) -> str:
    return f"<think>{reasoning}</think>" if reasoning else ""


def _smallest_arguments(parameters: Json) -> str:
    if (grammar_input := find_grammar_input(parameters)) is None:
        return smallest_instance(parameters, "tools")
    return json.encode({"input": grammar_input}).decode()
