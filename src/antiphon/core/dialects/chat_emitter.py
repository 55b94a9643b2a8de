"""Deltas → chunks of a chat completion, and chunks → the chat.completion as the JSON body.

A stream and a JSON body have the same chunks; the body is their fold. The first chunk of each choice has its role, the
last one its finish_reason and the fields forwarded from the engine; moderation and usage come last of all.
`tool_calls` are numbered within a choice in the order in which they start.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, assert_never

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    InternalDelta,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.dialects import dialect
from antiphon.core.prompt import FinishKind, TokenCounts
from antiphon.protocol.types.chat import response as wire
from antiphon.protocol.types.chat.response import ChatChunk, ChatDelta, ChunkChoice

_OBJECT: Final = "chat.completion.chunk"

_BODY_EXTRAS: Final = ("prompt_token_ids", "prompt_logprobs", "kv_transfer_params")
_PADDING_BLOCK = 16  # bytes; as in `core/emitter/emitter.py`
_Calls = dict[int, tuple[int, bool]]  # by key: the index, and whether it calls a custom tool


class ChatOutputOptions(Struct, frozen=True, kw_only=True):
    choices: int = 1
    include_usage: bool = True  # send the usage in a last chunk; always set for a JSON body
    running_usage_base: int | None = None  # prompt tokens; if set, every chunk has the usage so far
    include_reasoning: bool = True  # send reasoning
    legacy_function_call: bool = False  # a single `function_call` instead of `tool_calls`
    include_obfuscation: bool = False


class ChatEmitter(dialect.CompletionDialect):
    def __init__(self, header: dialect.CompletionHeader, options: ChatOutputOptions, new_id: Callable[[], str]) -> None:
        """`new_id` generates the ids of calls."""
        super().__init__(header, options.choices, options.include_usage, options.running_usage_base)
        self._options = options
        self._new_id = new_id
        self._decorates = options.include_obfuscation or options.running_usage_base is not None
        self._calls: list[_Calls] = [{} for _ in range(options.choices)]

    def begin(self) -> dialect.WireEvents:
        return [self._chunk(choice, ChatDelta("", "assistant")) for choice in range(self._options.choices)]

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> dialect.WireEvents:
        """Convert deltas to chunks. This is the token path: most deltas are plain text."""
        out: dialect.WireEvents = []
        for delta in deltas:
            if type(delta) is Text and not delta.logprobs:
                choices = [ChunkChoice(choice, ChatDelta(delta.text))]
                out.append(ChatChunk(self._id, _OBJECT, self._created, self._model, choices, self._usage))
            elif (chunk := self._to_chunk(delta, choice)) is not None:
                out.append(chunk)
        if out and (self._decorates or self._tokens[choice]):
            self._decorate(out, choice)
        return out

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> dialect.WireEvents:
        last = self._chunk(choice, ChatDelta())
        last_choice = last.choices[0]
        last_choice.finish_reason = self._finish_reason(finish, choice)
        extras = self._extras[choice]
        dialect.forward_fields(extras, last_choice, "stop_reason")
        dialect.forward_fields(extras, last, *_BODY_EXTRAS)
        self._add_engine_fields(last)
        self._decorate([last], choice)
        return [last]

    def close(self, counts: TokenCounts) -> dialect.WireEvents:
        out: dialect.WireEvents = []
        if self.moderation is not UNSET:
            chunk = ChatChunk(self._id, _OBJECT, self._created, self._model, [], self._usage)
            chunk.moderation = self.moderation
            out.append(chunk)
        if self._options.include_usage:
            last = ChatChunk(self._id, _OBJECT, self._created, self._model, [], dialect.completion_usage(counts))
            self._add_engine_fields(last)
            out.append(last)
        return out

    def result(self) -> wire.ChatCompletion:
        last = self._last
        body = wire.ChatCompletion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=[self._fold_choice(index) for index in range(self._options.choices)],
            usage=last.usage,
            system_fingerprint=last.system_fingerprint or None,
            service_tier=last.service_tier,
            moderation=self.moderation,
        )
        dialect.forward_fields(self._extras[0], body, *_BODY_EXTRAS)
        return body

    def _fold_choice(self, index: int) -> wire.ChatChoice:
        pieces = self._folded[index]
        logprobs = [piece.logprobs.content or () for piece in pieces if piece.logprobs is not None]
        return wire.ChatChoice(
            index=index,
            message=_fold_message([piece.delta for piece in pieces]),
            logprobs=wire.ChoiceLogprobs(content=[*chain.from_iterable(logprobs)]) if logprobs else None,
            finish_reason=pieces[-1].finish_reason,
            stop_reason=pieces[-1].stop_reason,
            token_ids=self._fold_tokens(index),
        )

    def _chunk(self, choice: int, delta: ChatDelta, logprobs: wire.ChoiceLogprobs | None = None) -> ChatChunk:
        choices = [ChunkChoice(choice, delta, logprobs)]
        return ChatChunk(self._id, _OBJECT, self._created, self._model, choices, self._usage)

    def _to_chunk(self, delta: Delta, choice: int) -> ChatChunk | None:
        match delta:
            case Text(text=text, logprobs=logprobs):
                return self._chunk(choice, ChatDelta(text), wire.ChoiceLogprobs(content=[*logprobs]))
            case ReasoningDelta(text=text) | Summary(text=text):
                if not self._options.include_reasoning:
                    return None
                return self._chunk(choice, ChatDelta(reasoning=text, reasoning_content=text))
            case Refusal(text=text):
                return self._chunk(choice, ChatDelta(refusal=text))
            case CallStarted():
                return self._chunk(choice, self._start_call(delta, self._calls[choice]))
            case CallDelta():
                return self._chunk(choice, self._continue_call(delta, self._calls[choice]))
            case _:  # this API has no event for the end of a call or message, and the server runs no tools for it
                if not isinstance(delta, CallDone | InternalDelta):
                    assert_never(delta)
                return None

    def _start_call(self, delta: CallStarted, calls: _Calls) -> ChatDelta:
        if self._options.legacy_function_call:
            calls[delta.key] = (len(calls), False)
            return ChatDelta(function_call=wire.CalledFunction(name=delta.name))
        custom = delta.kind == "custom"
        call = wire.ToolCall(index=len(calls), id=self._new_id(), type="custom" if custom else "function")
        calls[delta.key] = (len(calls), custom)
        if custom:
            call.custom = wire.CalledCustom(name=delta.name)
        else:
            call.function = wire.CalledFunction(name=delta.name)
        return ChatDelta(tool_calls=[call])

    def _continue_call(self, delta: CallDelta, calls: _Calls) -> ChatDelta:
        if self._options.legacy_function_call:
            return ChatDelta(function_call=wire.CalledFunction(arguments=delta.text))
        index, custom = calls[delta.key]
        if custom:
            return ChatDelta(tool_calls=[wire.ToolCall(index=index, custom=wire.CalledCustom(input=delta.text))])
        return ChatDelta(tool_calls=[wire.ToolCall(index=index, function=wire.CalledFunction(arguments=delta.text))])

    def _finish_reason(self, finish: FinishKind, choice: int) -> wire.ChatFinish:
        """Return the finish reason by the calls that were sent.

        Engines whose output is parsed here do not know about calls, and calls of other engines may have been dropped.
        """
        if finish not in ("stop", "tool_calls"):
            return finish
        if not self._calls[choice]:
            return "stop"
        return "function_call" if self._options.legacy_function_call else "tool_calls"

    def _decorate(self, chunks: dialect.WireEvents, choice: int) -> None:
        """Add token ids, padding and running usage, which few clients request."""
        for chunk in chunks:
            assert isinstance(chunk, ChatChunk)
            chunk.choices[0].token_ids = self._take_tokens(choice)
            if self._options.include_obfuscation:
                chunk.obfuscation = "." * (-len(msgspec.json.encode(chunk.choices)) % _PADDING_BLOCK)
            if self._usage_base is not None:
                chunk.usage = self._count_chunk(is_last=chunk.choices[0].finish_reason is not None)


def _fold_message(deltas: Sequence[ChatDelta]) -> wire.ChatMessage:
    text = "".join([delta.content or "" for delta in deltas])
    reasoning = "".join([delta.reasoning or "" for delta in deltas])
    refusal = "".join([delta.refusal or "" for delta in deltas])
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    legacy = [wire.ToolCall(index=0, function=delta.function_call) for delta in deltas if delta.function_call]
    has_other_output = bool(pieces or legacy or refusal)
    message = wire.ChatMessage(content=None if has_other_output and not text else text, refusal=refusal or None)
    if reasoning:
        message.reasoning = message.reasoning_content = reasoning
    if pieces:
        message.tool_calls = _fold_calls(pieces)
    if legacy:
        message.function_call = _fold_calls(legacy)[0].function
    return message


def _fold_calls(pieces: Iterable[wire.ToolCall]) -> list[wire.ToolCall]:
    """Join the pieces of each call; the first one has its name."""
    calls = defaultdict[object, list[wire.ToolCall]](list)
    for piece in pieces:
        calls[piece.index].append(piece)
    folded = []
    for first, *others in calls.values():
        call = replace(first, index=UNSET)
        if first.custom:
            text = "".join([piece.custom.input for piece in others if piece.custom])
            call.custom = replace(first.custom, input=text)
        elif first.function:
            text = "".join([piece.function.arguments for piece in others if piece.function])
            call.function = replace(first.function, arguments=text)
        folded.append(call)
    return folded
