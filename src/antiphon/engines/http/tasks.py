"""Tasks of HTTP engines other than generation: token counts, tokenization, embeddings and passthrough requests.

`task_paths` of an engine defines the paths; whether a server supports a task is probed. An unsupported task raises
UnsupportedParameter.
"""

import asyncio
from collections.abc import AsyncGenerator, Container, Iterable, Sequence
from typing import ClassVar, TypeVar

import msgspec
from msgspec.json import Decoder

from antiphon.core.prompt import ChatPrompt, Json, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines import base
from antiphon.engines.client import DECODE_ERRORS, EngineClient, EngineHttpError, EventSplitter
from antiphon.engines.http.body import ChatBody, encode_body
from antiphon.engines.http.error_mapping import error_text, map_http_error
from antiphon.engines.http.health_monitor import EMPTY_PROBE, HealthMonitor, Probe, ProbeClient
from antiphon.engines.http.readers import wire
from antiphon.errors import AntiphonError, EngineFailed, InvalidValue, UnsupportedParameter

T = TypeVar("T")

MAX_TOKEN_BYTES = 128  # hardly any token of any vocabulary is longer
HELLO_MESSAGE: Json = {"role": "user", "content": "Hello!"}
PROBE_TOOL: Json = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
# their texts are in several fields, so an error cannot name one
_PAIR_TASKS: frozenset[base.Task] = frozenset({"score", "rerank"})
_AUDIO_TASKS: frozenset[base.Task] = frozenset({"transcribe", "translate"})
EVENT_STREAM = "text/event-stream"
_SPEECH_TYPES = ("audio/", base.BYTES_MEDIA_TYPE)
_EMBEDDING_FLAG = "--is-embedding"  # SGLang's error names this flag if the server was not started for embeddings
REASONING_OPENINGS = ("<think>", "<think>\n", "<think>\n\n")

_PATH_NAMES: dict[base.Task, str] = {
    "generate": "chat/completions",
    "embed": "embeddings",
    "transcribe": "audio/transcriptions",
    "translate": "audio/translations",
    "moderate": "moderations",
    "speak": "audio/speech",
}


def paths_below(prefix: str, *tasks: base.Task) -> dict[base.Task, str]:
    """Return the paths of tasks below a prefix, under OpenAI's names or else under their own."""
    return {task: f"{prefix}/{_PATH_NAMES.get(task, task)}" for task in tasks}


class HttpTasks(base.Engine):
    """Base class of `HttpEngine`."""

    name: ClassVar[str]
    task_paths: ClassVar[dict[base.Task, str]] = {}  # task → path
    counting_path: ClassVar[str] = ""  # path that counts the tokens of a chat
    embedding_fields: ClassVar[frozenset[str]] = frozenset()  # optional fields of embedding requests that it supports
    embeds_tokens: ClassVar[bool] = True  # embeds token ids as well as texts
    tokenize_field: ClassVar[str] = "prompt"  # field of a text to tokenize
    levels: ClassVar[frozenset[base.PromptLevel]] = frozenset({"chat"})
    splits_text: ClassVar[bool] = False  # texts are tokenized per segment, so that only some may contain control tokens

    _label: str
    _client: EngineClient
    _quick_client: EngineClient
    _probe_client: ProbeClient
    _monitor: HealthMonitor
    _chat_body: ChatBody
    _is_token_level: bool

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        if not isinstance(prompt, ChatPrompt):
            return len(await self.tokenize(model, prompt))
        body = self._chat_fields(model, prompt)
        encoded, context = encode_body(body), self._context_size(model)
        if context and (minimum := len(encoded) // MAX_TOKEN_BYTES) > context and not _has_parts(prompt):
            return minimum  # a lower bound that exceeds the context, without tokenizing megabytes
        if self._is_token_level:
            return len(await self._tokenize_chat(model, prompt, None))
        if not self.counting_path:
            raise EngineFailed(f"{self._label} cannot count the tokens of this prompt.")
        reply = await self._post_quick(model, self.counting_path, encoded, wire.TOKEN_COUNT_REPLY)
        return reply.count or reply.input_tokens or 0

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
            case TextPrompt(segments=segments):
                return await self._tokenize_text(model, segments, special)
            case ChatPrompt():
                return await self._tokenize_chat(model, prompt, None)

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        body = {"model": model, "tokens": tokens, "skip_special_tokens": False}
        reply = await self._post_quick(model, self._task_path("detokenize"), body, wire.DETOKENIZE_REPLY)
        return reply.prompt or reply.text or reply.content or ""

    async def embed(
        self, model: str, inputs: base.EmbeddingInputs, dimensions: int | None = None, truncate: int | None = None
    ) -> base.EmbeddingResult:
        options = {"dimensions": dimensions, "truncate_prompt_tokens": truncate}
        options = {field: value for field, value in options.items() if value is not None}
        self._check_embedding(inputs, options, (await self.capabilities(model)).supported_fields)
        body: Json = {"model": model, "input": inputs, "encoding_format": "float", **options}
        try:
            reply = await self._client.post(self._task_path("embed"), msgspec.json.encode(body), wire.EMBEDDINGS_REPLY)
        except EngineHttpError as error:
            if _EMBEDDING_FLAG in error_text(error.body):
                raise UnsupportedParameter(
                    f"{self._label} does not support embeddings with this model.", param="model"
                ) from None
            raise map_http_error(error, self._label, model) from None
        ranked = sorted(enumerate(reply.data), key=lambda one: one[0] if one[1].index is None else one[1].index)
        return base.EmbeddingResult(
            vectors=[vector.embedding for _, vector in ranked], tokens=wire.counts_from_usage(reply.usage).input_tokens
        )

    def _check_embedding(
        self, inputs: base.EmbeddingInputs, options: Iterable[str], supported_fields: Container[str]
    ) -> None:
        for field in options:
            if field not in supported_fields:
                raise UnsupportedParameter(f"'{field}' is not supported by the {self.name} engine.", param=field)
        for one in inputs:
            if isinstance(one, str):
                continue
            if not self.embeds_tokens:
                raise UnsupportedParameter(f"The {self.name} engine embeds texts, not token ids.", param="input")
            self._check_tokens(one, "input")

    async def pass_through(
        self, model: str, task: base.Task, body: bytes, media_type: str = base.JSON_MEDIA_TYPE
    ) -> base.PassthroughReply:
        if task not in (await self.capabilities(model)).tasks:
            raise UnsupportedParameter(f"{self._label} does not support '{task}' for this model.", param="model")
        try:
            reply = base.PassthroughReply(*await self._client.post_raw(self._task_path(task), body, media_type))
        except EngineHttpError as http_error:
            error = map_http_error(http_error, self._label, model)
            if task in _PAIR_TASKS:
                error.param = None
            raise error from None
        return self._normalise_reply(model, task, reply)

    async def speak(self, model: str, body: bytes, as_events: bool = False) -> AsyncGenerator[bytes, None]:
        if "speak" not in (await self.capabilities(model)).tasks:
            raise UnsupportedParameter(f"{self._label} does not support 'speak' for this model.", param="model")
        try:
            connection = await self._client.open_raw(self._task_path("speak"), body)
        except EngineHttpError as http_error:
            raise map_http_error(http_error, self._label, model) from None
        try:
            media_type = connection.content_type.partition(";")[0].strip().lower()
            if as_events and media_type != EVENT_STREAM:
                raise UnsupportedParameter(f"{self._label} does not send speech as events.", param="stream_format")
            if not as_events and not media_type.startswith(_SPEECH_TYPES):
                raise EngineFailed(f"{self._label} did not respond with audio.")
            async for piece in self._client.read_pieces(connection):
                yield piece
        finally:
            self._client.release(connection)

    def _normalise_reply(self, model: str, task: base.Task, reply: base.PassthroughReply) -> base.PassthroughReply:
        """Convert a reply to the common format, for engines with a format of their own."""
        return normalise_transcription(reply, self._label) if task in _AUDIO_TASKS else reply

    # Tokenization.

    @property
    def _last_probe(self) -> Probe:
        return self._monitor.last_probe or EMPTY_PROBE

    def _context_size(self, model: str) -> int | None:
        return self._last_probe.contexts.get(model)

    def _check_tokens(self, tokens: Sequence[int], param: str) -> None:
        """Raise InvalidValue for an id outside the vocabulary, if its size is known."""
        size = self._last_probe.capabilities.vocabulary_size
        invalid = () if size is None else [token for token in tokens if not 0 <= token < size]
        if invalid:
            raise InvalidValue(f"The token id {invalid[0]} is outside the vocabulary of {size}.", param=param)

    async def _tokenize_text(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        """Tokenize texts. The engine parses control tokens in every segment, control segment or not."""
        text = "".join([segment.text for segment in segments])
        body: Json = {"model": model, self.tokenize_field: text, "add_special_tokens": special}
        return tuple((await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens)

    async def _tokenize_chat(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        """Tokenize a chat by the model's template, which gets the reasoning effort, as vLLM and SGLang do for chats."""
        if "tokens" not in self.levels:
            raise UnsupportedParameter(f"{self._label} does not support tokenization of chats.", param="model")
        body = self._chat_fields(model, prompt)
        if effort is not None:
            variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
            body["chat_template_kwargs"] = {**variables, **prompt.template_kwargs}
        return tuple((await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens)

    async def _try_tokenize(self, model: str, prompt: TextPrompt) -> TextPrompt | TokenPrompt:
        """Return token ids for a text, or the text itself if the engine does not tokenize."""
        if "tokenize" not in self.task_paths:
            return prompt
        return TokenPrompt(await self._tokenize_text(model, prompt.segments, True))

    def _task_path(self, task: base.Task) -> str:
        if task not in self.task_paths:
            raise UnsupportedParameter(f"{self._label} does not support the task '{task}'.", param="model")
        return self.task_paths[task]

    def _chat_fields(self, model: str, prompt: ChatPrompt) -> Json:
        body: Json = {"model": model, "messages": self._chat_body.to_messages(prompt)}
        if prompt.template_kwargs:
            body["chat_template_kwargs"] = prompt.template_kwargs
        if prompt.tools:
            body["tools"] = prompt.tools
        return body

    async def _post_quick(self, model: str, path: str, body: Json | bytes, decoder: Decoder[T]) -> T:
        encoded = body if isinstance(body, bytes) else encode_body(body)
        try:
            return await self._quick_client.post(path, encoded, decoder)
        except EngineHttpError as error:
            raise map_http_error(error, self._label, model) from None

    # Probes.

    async def _probe_tasks(self) -> frozenset[base.Task]:
        """Return the tasks whose paths exist."""
        present = await asyncio.gather(*[self._probe_client.has_path(path) for path in self.task_paths.values()])
        return frozenset([task for task, found in zip(self.task_paths, present, strict=True) if found])

    async def _can_count_tokens(self, model: str) -> bool:
        """Return whether the server counts tokens; older versions do not."""
        try:
            return await self.count_tokens(model, ChatPrompt((HELLO_MESSAGE,))) > 0
        except AntiphonError:
            return False

    async def _template_has_tools(self, model: str) -> bool:
        """Return whether a tool makes the rendered prompt longer; only probed if Antiphon parses the calls itself."""
        if not self._is_token_level:
            return True
        try:
            alone, offered = [
                await self._tokenize_chat(model, ChatPrompt((HELLO_MESSAGE,), tools), None)
                for tools in ((), (PROBE_TOOL,))
            ]
        except AntiphonError:
            return False
        return len(offered) > len(alone)

    async def _probe_effort(self, model: str) -> bool | None:
        """Return whether the reasoning effort changes the rendered prompt; None if the server cannot show that."""
        try:
            disabled, enabled = [
                await self._tokenize_chat(
                    model, ChatPrompt((HELLO_MESSAGE,), template_kwargs={"enable_thinking": effort != "none"}), effort
                )
                for effort in ("none", "high")
            ]
        except AntiphonError:
            return None
        return disabled != enabled

    async def _probe_reasoning_openers(self, model: str) -> tuple[tuple[int, ...], ...]:
        """Return the last tokens of prompts that end with a reasoning opener; empty unless it is one token."""
        if not self._is_token_level:
            return ()
        texts = [(Segment(opening, control=True),) for opening in REASONING_OPENINGS]
        try:
            token_lists = [await self._tokenize_text(model, text, False) for text in texts]
        except AntiphonError:
            return ()
        return tuple(token_lists) if len(token_lists[0]) == 1 else ()


def _has_parts(prompt: ChatPrompt) -> bool:
    """Return whether there is content other than text, such as an image, whose size does not determine its tokens."""
    return any(isinstance(message.get("content"), list) for message in prompt.messages)


class _TranscriptEvent(wire.WireCompletion):
    """A transcription event of OpenAI, which has a type, or a chunk like that of a chat."""

    type: str | None = None


_TRANSCRIPT_EVENT = Decoder(_TranscriptEvent)


def normalise_transcription(reply: base.PassthroughReply, label: str) -> base.PassthroughReply:
    """Convert a transcription stream to OpenAI's events; some engines send chunks like those of a chat instead.

    The stream is complete when it is converted, so one that ends early or with an error raises EngineFailed. Other
    replies are returned unchanged. `label` is the subject of error messages.
    """
    if not reply.media_type.startswith(EVENT_STREAM):
        return reply
    splitter = EventSplitter()
    try:
        events = [_TRANSCRIPT_EVENT.decode(data) for data in [*splitter.feed(reply.body), *splitter.finish()]]
    except DECODE_ERRORS:
        raise EngineFailed(f"{label} sent an event that cannot be decoded.") from None
    if any(event.error is not None for event in events):
        raise EngineFailed(f"{label} failed in the middle of its response.")
    if events and events[-1].type:
        return reply
    if not splitter.done:
        raise EngineFailed(f"{label} ended its response early.")
    return base.PassthroughReply(b"".join(_build_transcript(events)), EVENT_STREAM)


def _build_transcript(events: Sequence[_TranscriptEvent]) -> Iterable[bytes]:
    choices = [choice for event in events for choice in event.choices or ()]
    texts = [choice.delta.content for choice in choices if choice.delta is not None and choice.delta.content]
    done: Json = {"type": "transcript.text.done", "text": "".join(texts)}
    if usage := next((event.usage for event in reversed(events) if event.usage is not None), None):
        counts = wire.counts_from_usage(usage)
        total = counts.input_tokens + counts.output_tokens
        done["usage"] = {
            "type": "tokens",
            "input_tokens": counts.input_tokens,
            "output_tokens": counts.output_tokens,
            "total_tokens": total,
        }
    for event in [*({"type": "transcript.text.delta", "delta": text} for text in texts), done]:
        yield b"data: %b\n\n" % msgspec.json.encode(event)
    yield b"data: [DONE]\n\n"
