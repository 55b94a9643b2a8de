"""A call of a model in the words of OpenTelemetry's conventions for generative AI: what was asked and what was said."""

from collections.abc import Sequence
from typing import Any

from antiphon.core.prompt import ChatPrompt, Chunk, Finish, Prompt, TextPrompt, Work
from antiphon.observe.spans import Value

Json = dict[str, Any]


def asked(engine: str, work: Work) -> tuple[str, dict[str, Value]]:
    """The name of the span, and what is known before there is an answer."""
    operation = "chat" if isinstance(work.prompt, ChatPrompt) else "text_completion"
    sampling = work.sampling
    given = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": work.model,
        **{name: value for name, value in given.items() if value is not None},
    }
    return f"{operation} {work.model}", attributes


def messages(prompt: Prompt) -> list[Json]:
    """Of a chat; of any other prompt, all of it as one."""
    match prompt:
        case ChatPrompt():
            return [{"role": one.get("role", ""), "parts": _parts(one)} for one in prompt.messages]
        case TextPrompt():
            text = "".join([segment.text for segment in prompt.segments])
            return [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    return [{"role": "user", "parts": [{"type": "tokens", "content": [*prompt.tokens]}]}]


def said(chunks: Sequence[Chunk], finish: Finish | None) -> list[Json]:
    parts = [
        {"type": kind, "content": text}
        for kind, text in (
            ("reasoning", "".join([chunk.thought for chunk in chunks])),
            ("text", "".join([chunk.text for chunk in chunks])),
            ("refusal", "".join([chunk.refusal for chunk in chunks])),
        )
        if text
    ]
    return [{"role": "assistant", "parts": [*parts, *calls(chunks)], "finish_reason": finish or ""}]


def calls(chunks: Sequence[Chunk]) -> list[Json]:
    """Of an engine that parses them itself, each put together."""
    found: dict[int, Json] = {}
    for piece in (piece for chunk in chunks for piece in chunk.calls):
        call = found.setdefault(piece.index, {"type": "tool_call", "name": "", "arguments": ""})
        call["name"] += piece.name
        call["arguments"] += piece.arguments
    return [*found.values()]


def _parts(message: Json) -> list[Json]:
    content = message.get("content")
    pieces = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    parts = [
        {"type": "text", "content": piece["text"]}
        if isinstance(piece, dict) and isinstance(piece.get("text"), str)
        else {"type": piece.get("type", "part") if isinstance(piece, dict) else "part"}
        for piece in pieces
    ]
    called = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    wished = [{"type": "tool_call", "name": one.get("name"), "arguments": one.get("arguments")} for one in called]
    return [*parts, *wished]
