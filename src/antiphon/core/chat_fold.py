"""Chunks → the chat.completion that they are pieces of. Nothing else assembles one."""

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from antiphon.core.dialect import Told
from antiphon.protocol.chat_answers import (
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    ToolCall,
)
from antiphon.protocol.parts import Logprob


class ChatFold:
    def __init__(self, choices: int) -> None:
        self._choices = [_Choice(index) for index in range(choices)]
        self._last: ChatChunk | None = None
        self._usage: CompletionUsage | None = None
        self._passed: ChatChunk | None = None  # the first that ended a choice: it has what the engine passed on

    def add(self, told: Told) -> None:
        for chunk in told:
            if not isinstance(chunk, ChatChunk):
                continue  # a fault: there will be no result
            self._last = chunk
            if chunk.usage:
                self._usage = chunk.usage
            for said in chunk.choices:
                self._choices[said.index].add(said)
                if said.finish_reason is not None and self._passed is None:
                    self._passed = chunk

    def result(self) -> ChatCompletion:
        last, passed = self._last, self._passed
        assert last is not None
        assert passed is not None
        assert self._usage is not None
        return ChatCompletion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=[choice.whole() for choice in self._choices],
            usage=self._usage,
            system_fingerprint=last.system_fingerprint or None,
            service_tier=last.service_tier,
            prompt_token_ids=passed.prompt_token_ids,
            prompt_logprobs=passed.prompt_logprobs,
            kv_transfer_params=passed.kv_transfer_params,
        )


class _Call(Struct):
    """A call in the making; `pieces` of its arguments."""

    first: ToolCall
    pieces: list[str] = field(default_factory=list)

    def whole(self) -> ToolCall:
        text, first = "".join(self.pieces), self.first
        call = ToolCall(id=first.id, type=first.type)
        if first.function:
            call.function = CalledFunction(name=first.function.name, arguments=text)
        elif first.custom:
            call.custom = CalledCustom(name=first.custom.name, input=text)
        return call


class _Choice(Struct):
    index: int
    content: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    function: CalledFunction | UnsetType = UNSET
    arguments: list[str] = field(default_factory=list)
    logprobs: list[Logprob] | None = None
    tokens: list[int] = field(default_factory=list)
    end: ChunkChoice | None = None

    def add(self, said: ChunkChoice) -> None:
        delta = said.delta
        if delta.content:
            self.content.append(delta.content)
        if delta.reasoning:
            self.thoughts.append(delta.reasoning)
        if delta.refusal:
            self.refusals.append(delta.refusal)
        if delta.tool_calls or delta.function_call:
            self._call(delta)
        if said.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += said.logprobs.content or ()
        if said.token_ids:
            self.tokens += said.token_ids
        if said.finish_reason is not None:
            self.end = said

    def whole(self) -> ChatChoice:
        assert self.end is not None
        assert self.end.finish_reason is not None
        return ChatChoice(
            index=self.index,
            message=self._message(),
            logprobs=None if self.logprobs is None else ChoiceLogprobs(content=self.logprobs),
            finish_reason=self.end.finish_reason,
            stop_reason=self.end.stop_reason,
            token_ids=self.tokens or UNSET,
        )

    def _call(self, delta: ChatDelta) -> None:
        for piece in delta.tool_calls or ():
            call = self.calls.setdefault(piece.index or 0, _Call(piece))
            called = piece.function or piece.custom
            if isinstance(called, CalledCustom):
                call.pieces.append(called.input)
            elif isinstance(called, CalledFunction):
                call.pieces.append(called.arguments)
        if delta.function_call:
            self.function = self.function or delta.function_call
            self.arguments.append(delta.function_call.arguments)

    def _message(self) -> ChatMessage:
        text, thought, refusal = map("".join, (self.content, self.thoughts, self.refusals))
        silent = bool(self.calls or self.function or refusal)
        message = ChatMessage(content=None if silent and not text else text, refusal=refusal or None)
        if thought:
            message.reasoning = message.reasoning_content = thought
        if self.calls:
            message.tool_calls = [call.whole() for call in self.calls.values()]
        if self.function:
            message.function_call = replace(self.function, arguments="".join(self.arguments))
        return message
