"""A model call as attributes of the OpenTelemetry semantic conventions for generative AI (`gen_ai.*`)."""

from collections.abc import Sequence
from typing import Any

from antiphon.core.prompt import ChatPrompt, Chunk, FinishKind, GenerationRequest, Prompt, TextPrompt
from antiphon.observe.spans import AttributeValue

Json = dict[str, Any]


def describe_request(engine: str, generation: GenerationRequest) -> tuple[str, dict[str, AttributeValue]]:
    """Return the name of the span and the attributes that are available before the call."""
    operation = "chat" if isinstance(generation.prompt, ChatPrompt) else "text_completion"
    sampling = generation.sampling
    options = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": generation.model,
        **{name: value for name, value in options.items() if value is not None},
    }
    return f"{operation} {generation.model}", attributes


def input_messages(prompt: Prompt) -> list[Json]:
    """Return the messages of a chat; any other prompt becomes one user message."""
    match prompt:
        case ChatPrompt():
            return [{"role": message.get("role", ""), "parts": _message_parts(message)} for message in prompt.messages]
        case TextPrompt():
            text = "".join([segment.text for segment in prompt.segments])
            return [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    return [{"role": "user", "parts": [{"type": "tokens", "content": [*prompt.tokens]}]}]


def output_messages(chunks: Sequence[Chunk], finish: FinishKind | None) -> list[Json]:
    """Return the output as one assistant message."""
    parts = [
        {"type": kind, "content": text}
        for kind, text in (
            ("reasoning", "".join([chunk.reasoning for chunk in chunks])),
            ("text", "".join([chunk.text for chunk in chunks])),
            ("refusal", "".join([chunk.refusal for chunk in chunks])),
        )
        if text
    ]
    return [{"role": "assistant", "parts": [*parts, *collect_calls(chunks)], "finish_reason": finish or ""}]


def collect_calls(chunks: Sequence[Chunk]) -> list[Json]:
    """Join the pieces of the tool calls of an engine that parses them itself."""
    calls_by_index: dict[int, Json] = {}
    for piece in (piece for chunk in chunks for piece in chunk.calls):
        call = calls_by_index.setdefault(piece.index, {"type": "tool_call", "name": "", "arguments": ""})
        call["name"] += piece.name
        call["arguments"] += piece.arguments
    return [*calls_by_index.values()]


def _message_parts(message: Json) -> list[Json]:
    content = message.get("content")
    pieces = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    parts = [
        {"type": "text", "content": piece["text"]}
        if isinstance(piece, dict) and isinstance(piece.get("text"), str)
        else {"type": piece.get("type", "part") if isinstance(piece, dict) else "part"}
        for piece in pieces
    ]
    functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    calls = [
        {"type": "tool_call", "name": function.get("name"), "arguments": function.get("arguments")}
        for function in functions
    ]
    return [*parts, *calls]
