"""Deltas → chunks of a chat completion, the same for a stream and for a JSON body, which is their fold.

The first chunk of each choice has its role, the last one its finish_reason and what the engine passed on; the usage
comes last of all. `tool_calls` are numbered within a choice in the order in which they start.

Chunks → the chat.completion that they are pieces of. Nothing else assembles one.
"""

from collections.abc import Callable, Iterable
from typing import Final, assert_never

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Opened,
    Put,
    Ran,
    Refusal,
    Sealed,
    Stage,
    Summary,
    Text,
    Thought,
    Turned,
)
from antiphon.core.dialects.dialect import Head, PassedOn, Told, completion_usage, stream_fault
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.errors import AntiphonError
from antiphon.protocol.types.chat.response import (
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatFinish,
    ChatMessage,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    ToolCall,
)
from antiphon.protocol.types.parts import Logprob


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


_OBJECT: Final = "chat.completion.chunk"
_BLOCK = 16  # bytes; as core/emitter/emitter.py pads
_Calls = dict[int, tuple[int, bool]]  # by key: the index, and whether it is a custom tool's


class Manner(Struct, frozen=True, kw_only=True):
    """How a client wants to be answered."""

    choices: int = 1
    usage: bool = True  # a last chunk tells it; always so for a JSON body
    running: int | None = None  # every chunk tells the usage so far: the tokens of the prompt
    reasoning: bool = True  # thoughts are told
    legacy: bool = False  # one `function_call` in place of `tool_calls`
    obfuscates: bool = False


class ChatEmitter:
    def __init__(self, head: Head, manner: Manner, new_id: Callable[[], str]) -> None:
        """`new_id` makes the ids of calls."""
        self._id, self._created, self._model = head.id, head.created, head.model
        self._manner = manner
        self._new_id = new_id
        self._usage: UnsetType | None = None if manner.usage else UNSET  # of chunks before the last
        self._decorates = manner.obfuscates or manner.running is not None
        self._calls: list[_Calls] = [{} for _ in range(manner.choices)]
        self._passed = PassedOn(manner.choices, head.service_tier)
        self._pieces = 0
        self._fold: ChatFold | None = None

    def begin(self) -> Told:
        return [self._chunk(choice, ChatDelta("", "assistant")) for choice in range(self._manner.choices)]

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        self._passed.note(chunk, choice)

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        """The token path: most deltas are a piece of text and nothing else."""
        out: Told = []
        for delta in deltas:
            if type(delta) is Text and not delta.logprobs:
                choices = [ChunkChoice(choice, ChatDelta(delta.text))]
                out.append(ChatChunk(self._id, _OBJECT, self._created, self._model, choices, self._usage))
            elif (chunk := self._said(delta, choice)) is not None:
                out.append(chunk)
        if out and (self._decorates or self._passed.tokens[choice]):
            self._decorate(out, choice)
        return out

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        last = self._chunk(choice, ChatDelta())
        said = last.choices[0]
        said.finish_reason = self._reason(finish, choice)
        extras = self._passed.extras[choice]
        if extras.stop_reason is not None:
            said.stop_reason = extras.stop_reason
        if extras.prompt_token_ids is not None:
            last.prompt_token_ids = extras.prompt_token_ids
        if extras.prompt_logprobs is not None:
            last.prompt_logprobs = extras.prompt_logprobs
        if extras.kv_transfer_params is not None:
            last.kv_transfer_params = extras.kv_transfer_params
        self._sign(last)
        self._decorate([last], choice)
        return [last]

    def close(self, counts: Counts) -> Told:
        if not self._manner.usage:
            return []
        last = ChatChunk(self._id, _OBJECT, self._created, self._model, [], completion_usage(counts))
        self._sign(last)
        return [last]

    def fault(self, error: AntiphonError) -> Told:
        return [stream_fault(error)]

    def fold(self, told: Told) -> None:
        if self._fold is None:
            self._fold = ChatFold(self._manner.choices)
        self._fold.add(told)

    def result(self) -> ChatCompletion:
        assert self._fold is not None
        return self._fold.result()

    def _chunk(self, choice: int, delta: ChatDelta, logprobs: ChoiceLogprobs | None = None) -> ChatChunk:
        choices = [ChunkChoice(choice, delta, logprobs)]
        return ChatChunk(self._id, _OBJECT, self._created, self._model, choices, self._usage)

    def _said(self, delta: Delta, choice: int) -> ChatChunk | None:
        match delta:
            case Text(text=text, logprobs=logprobs):
                return self._chunk(choice, ChatDelta(text), ChoiceLogprobs(content=[*logprobs]))
            case Thought(text=text) | Summary(text=text):
                if not self._manner.reasoning:
                    return None
                return self._chunk(choice, ChatDelta(reasoning=text, reasoning_content=text))
            case Refusal(text=text):
                return self._chunk(choice, ChatDelta(refusal=text))
            case CallStarted():
                return self._chunk(choice, self._started(delta, self._calls[choice]))
            case CallDelta():
                return self._chunk(choice, self._went_on(delta, self._calls[choice]))
            case CallDone() | Citation() | Break() | Sealed():
                return None  # chat has no word for the end of a call or a message, and no tool of ours cites here
            case Opened() | Stage() | Ran() | Put() | Turned():
                return None  # the server runs nothing here
            case _:
                assert_never(delta)

    def _started(self, delta: CallStarted, calls: _Calls) -> ChatDelta:
        if self._manner.legacy:
            calls[delta.key] = (len(calls), False)
            return ChatDelta(function_call=CalledFunction(name=delta.name))
        custom = delta.kind == "custom"
        call = ToolCall(index=len(calls), id=self._new_id(), type="custom" if custom else "function")
        calls[delta.key] = (len(calls), custom)
        if custom:
            call.custom = CalledCustom(name=delta.name)
        else:
            call.function = CalledFunction(name=delta.name)
        return ChatDelta(tool_calls=[call])

    def _went_on(self, delta: CallDelta, calls: _Calls) -> ChatDelta:
        if self._manner.legacy:
            return ChatDelta(function_call=CalledFunction(arguments=delta.text))
        index, custom = calls[delta.key]
        if custom:
            return ChatDelta(tool_calls=[ToolCall(index=index, custom=CalledCustom(input=delta.text))])
        return ChatDelta(tool_calls=[ToolCall(index=index, function=CalledFunction(arguments=delta.text))])

    def _reason(self, finish: Finish, choice: int) -> ChatFinish:
        """Engines that we parse for do not know that there were calls; of others' calls some may have been dropped."""
        if finish not in ("stop", "tool_calls"):
            return finish
        if not self._calls[choice]:
            return "stop"
        return "function_call" if self._manner.legacy else "tool_calls"

    def _sign(self, chunk: ChatChunk) -> None:
        chunk.service_tier = self._passed.tier
        if self._passed.fingerprint is not None:
            chunk.system_fingerprint = self._passed.fingerprint

    def _decorate(self, chunks: Told, choice: int) -> None:
        """With what few clients ask for."""
        for chunk in chunks:
            assert isinstance(chunk, ChatChunk)
            chunk.choices[0].token_ids = self._passed.take_tokens(choice)
            if self._manner.obfuscates:
                chunk.obfuscation = "." * (-len(msgspec.json.encode(chunk.choices)) % _BLOCK)
            if self._manner.running is not None:
                self._pieces += chunk.choices[0].finish_reason is None
                counts = Counts(input_tokens=self._manner.running, output_tokens=self._pieces)
                chunk.usage = completion_usage(counts)
