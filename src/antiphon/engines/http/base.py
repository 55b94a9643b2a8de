"""Base of all HTTP engines: sends prompts, reads chunks, and monitors the health of the server.

Responses of an engine are untrusted: whatever it sends becomes a complete result or a typed error. Closing the iterator
of `generate` closes the connection, which is how these servers notice cancellation.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon import errors
from antiphon.core.prompt import ChatPrompt, Chunk, GenerationRequest, Json, ParserChoice, TextPrompt, TokenPrompt
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.base import Capabilities, ChunkSink, Model, PromptLevel, PushStream, min_limit
from antiphon.engines.client import (
    DECODE_ERRORS,
    EngineClient,
    EngineHttpError,
    EngineTimeouts,
    EventStream,
    NotAStream,
)
from antiphon.engines.connection import ConnectionLost, EngineAddress, ResponseInterrupted
from antiphon.engines.http.body import ChatBody, FieldNames, RawBody
from antiphon.engines.http.endpoints import BodyBuilder, EngineEndpoint, ResponseReader
from antiphon.engines.http.engine_url import parse_engine_url
from antiphon.engines.http.error_mapping import find_error, map_http_error, map_stream_error
from antiphon.engines.http.fields import CHAT_FIELDS, RAW_FIELDS, Column, supported_fields, unsupported_reasons
from antiphon.engines.http.health_monitor import HealthMonitor, Probe, ProbeClient, ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.readers.completion_reader import ChatCompletionReader, TextCompletionReader
from antiphon.engines.http.tasks import HttpTasks

USAGE_SECONDS = 5.0  # between the end of the output and its usage


class HttpPushStream(PushStream):
    """The rest of a response, read and pushed in the callback that received it; its reader knows why it stopped."""

    def __init__(self, stream: EventStream[Any], reader: ResponseReader) -> None:
        self._stream = stream
        self._reader = reader

    async def push_to(self, sink: ChunkSink) -> None:
        stream, reader = self._stream, self._reader

        def receive(events: list[Any]) -> Awaitable[None] | None:
            try:
                chunks = reader.feed(events)
            except errors.EngineFailed as error:
                chunks, reader.fault = [], error
            if reader.ended or reader.fault is not None:
                stream.stop_pushing()
            elif reader.finished:
                stream.shorten_timeout(USAGE_SECONDS)
            return sink(chunks) if chunks else None

        await stream.push_to(receive)


MAX_IDLE_CONNECTIONS = 64
MAX_ANSWER_BYTES = 32 * 1024 * 1024  # of an unstreamed response; text is never that long
PROBE_TIMEOUTS = EngineTimeouts(connect=5.0, first_byte=10.0, idle=10.0)
REASONING_OPENER = "<think>\n"  # prepended to the output if the prompt already ends with it


class HttpSettings(Struct, frozen=True, kw_only=True):
    engine: str  # URL of the engine, see `engine_url.py`
    engine_key: str | None = None
    engine_ca: Path | None = None
    engine_level: Literal["chat", "tokens"] = "chat"
    context: int | None = None  # of its models, if it reports none or a larger one
    allow_control_strings: bool = False
    model: tuple[str, ...] = ()  # models to serve; empty: all that the engine lists
    first_token_timeout: float = 600.0
    idle_timeout: float = 120.0
    reads: ParserChoice = ParserChoice()
    run_timeout: float = 3600.0

    def __repr__(self) -> str:
        """Leaves out the key."""
        return f"HttpSettings(engine={self.engine!r}, model={self.model!r})"


class HttpEngine(HttpTasks):
    """Base of the adapters. A subclass defines how an engine is reached and probed, and how its fields differ."""

    name: ClassVar[str]  # in the registry and in URLs
    title: ClassVar[str]  # in the documentation
    port: ClassVar[int]
    fields: ClassVar[Column] = {}  # replaces cells of CHAT_FIELDS
    raw_fields: ClassVar[Column] = {}  # replaces cells of RAW_FIELDS, for raw prompts
    api: ClassVar[str] = "/v1"
    version_path: ClassVar[str] = ""  # path that returns the version; empty: none
    stream_fields: ClassVar[Json] = {}  # added to the body of every streamed request
    includes_stop: ClassVar[bool] = False  # it includes the stop string in streamed output
    continues_assistant: ClassVar[bool] = False  # it continues a last assistant message instead of starting a new one
    raw_levels: ClassVar[frozenset[PromptLevel]] = frozenset()  # accepted forms of raw prompts
    parses_control_tokens: ClassVar[bool] = True  # it parses control tokens in the text of a chat

    def __init__(self, settings: HttpSettings, address: EngineAddress | None = None) -> None:
        """`address` replaces the address in the URL, if it is set."""
        self.settings = settings
        url = parse_engine_url(settings.engine, self.port, settings.engine_ca)
        address = address or url.address
        self._is_token_level = settings.engine_level == "tokens"
        self._check_settings()
        self._label = f"The {self.name} engine"
        timeouts = EngineTimeouts(first_byte=settings.first_token_timeout, idle=settings.idle_timeout)
        options = (MAX_IDLE_CONNECTIONS, url.host, settings.engine_key, self._to_base_path(url.path))
        self._client = EngineClient(address, self._label, timeouts, *options)
        self._quick_client = EngineClient(address, self._label, PROBE_TIMEOUTS, *options)
        self._probe_client = ProbeClient(self._quick_client)
        self._monitor = HealthMonitor(self._label, url.display, self.probe)
        self._described_probe: Probe | None = None
        self._listed_probe: Probe | None = None  # the probe that `_model_names` was made from
        self._model_names: frozenset[str] = frozenset()
        self._capabilities: dict[str, Capabilities] = {}
        self._columns = self.chat_column(), self.raw_column()
        chat_names, raw_names = (FieldNames(self.name, cells) for cells in self._columns)
        self._chat_body = ChatBody(chat_names, self.stream_fields, continues_assistant=self.continues_assistant)
        self._chat_endpoint = self._make_openai_endpoint(
            "chat/completions", self._chat_body.build, ChatCompletionReader
        )
        self._raw_endpoint = self._make_raw_endpoint(raw_names)

    @classmethod
    def chat_column(cls) -> Column:
        """Return the cells of this engine, by request field."""
        return {**CHAT_FIELDS, **cls.fields}

    @classmethod
    def raw_column(cls) -> Column:
        """Return the cells of this engine for raw prompts."""
        return {**cls.chat_column(), **RAW_FIELDS, **cls.raw_fields}

    def _check_settings(self) -> None:
        """Raise StartupError for settings that this engine does not support."""
        settings = self.settings
        if "=" in "".join(settings.model):
            raise errors.StartupError(f"The {self.name} engine serves models by name; ID=FILE is only for local files.")
        if settings.engine_level not in self.levels:
            raise errors.StartupError(f"The {self.name} engine supports chats only: leave out the level `tokens`.")
        if settings.reads.harmony and not self._is_token_level:
            hint = "add --engine-level tokens" if "tokens" in self.levels else f"the {self.name} engine returns none"
            raise errors.StartupError(f"--harmony needs token ids: {hint}.")

    async def open(self) -> None:
        await self._monitor.start()

    async def close(self) -> None:
        await self._monitor.stop()
        self._client.close()
        self._quick_client.close()

    def models(self) -> Sequence[Model]:
        return self._last_probe.models

    def serves(self, model: str) -> bool:
        if (probe := self._monitor.last_probe) is not self._listed_probe:
            self._listed_probe, self._model_names = probe, frozenset(one.id for one in self.models())
        return model in self._model_names

    def is_healthy(self) -> bool:
        return self._monitor.is_healthy

    async def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities of a model, built once per probe."""
        probe = self._last_probe
        if probe is not self._described_probe:
            self._described_probe, self._capabilities = probe, {}
        if (capabilities := self._capabilities.get(model)) is None:
            capabilities = self._build_capabilities(model, probe)
            capabilities = self._capabilities[model] = (
                capabilities
                if "generate" in capabilities.tasks
                else _without_generation(capabilities, self.embedding_fields)
            )
        return capabilities

    def _build_capabilities(self, model: str, probe: Probe) -> Capabilities:
        probed, cells = probe.capabilities, self._columns[self._is_token_level]
        raw_levels, reasons = probed.raw_levels or self.raw_levels, dict(probed.unsupported_reasons)
        if self._is_token_level:
            reasons.pop("tools", None)  # at the token level Antiphon parses the calls itself
        return Capabilities(
            level="tokens" if self._is_token_level else "chat",
            supported_fields=(supported_fields(cells) | self.embedding_fields) - reasons.keys(),
            unsupported_reasons=unsupported_reasons(cells) | reasons,
            other_levels=raw_levels | {"chat"} if self._is_token_level else raw_levels,
            tasks=probed.tasks.get(model, frozenset({"generate"})),
            context=self._context_size(model),
            slots=probe.slots,
            can_count_tokens=probed.can_count_tokens,
            template_has_tools=probed.template_has_tools,
            takes_effort=self._takes_effort(model, probed),
            corrects_images=True,
            needs_control_escape=self.parses_control_tokens and not self.settings.allow_control_strings,
            architecture=probed.architecture,
            template_source=probed.template_source,
            can_generate_whole=not self._is_token_level or self._raw_endpoint.whole_reader is not None,
            version=probe.version,
            parser_choice=self.settings.reads,
            parsers=probed.parsers,
        )

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        if request.buffered or self._must_generate_whole(request):
            return self._generate_whole(request)
        return self._stream(request)

    async def _generate_whole(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        client, (endpoint, request, in_reasoning) = self._client, await self._prepare_request(request)
        http_request = client.build_request(endpoint.path, endpoint.body(request, stream=False))
        try:
            reply = await client.send(http_request, MAX_ANSWER_BYTES, self._may_keep_waiting)
            chunks: list[Chunk] = []
            if isinstance(reply, bytes) and endpoint.whole_reader is not None:
                chunks = endpoint.whole_reader(self._label, request.sampling).read_whole(endpoint.decoder.decode(reply))
        except errors.AntiphonError as error:
            raise self._map_error(error, request.model) from None
        except DECODE_ERRORS as error:
            raise client.decode_error(error) from None
        if not isinstance(reply, bytes):  # it streams nevertheless
            stream = EventStream(client, reply, endpoint.decoder)
            chunks = await self._collect(_StartedRequest(endpoint, request, in_reasoning, stream))
        elif in_reasoning:
            chunks = [Chunk(text=REASONING_OPENER), *chunks]
        yield chunks

    async def _collect(self, started: "_StartedRequest") -> list[Chunk]:
        """Collect a streamed response to an unstreamed request: until its end it can be requested from another engine.

        The timeout is for an engine that sends data without chunks.
        """
        collected: list[Chunk] = []
        timeout = self.settings.first_token_timeout + self.settings.idle_timeout
        try:
            async with asyncio.timeout(timeout) as timer, aclosing(self._stream(started.request, started)) as lists:
                async for chunks in lists:
                    collected += chunks
                    timer.reschedule(asyncio.get_running_loop().time() + timeout)
        except TimeoutError:
            raise errors.EngineFailed(f"{self._label} sent no output for too long.") from None
        return collected

    async def _stream(
        self, request: GenerationRequest, started: "_StartedRequest | None" = None
    ) -> AsyncGenerator[list[Chunk], None]:
        started = started or await self._start_stream(request)
        stream, in_reasoning = started.stream, started.in_reasoning
        reader = started.endpoint.make_reader(started.request)
        push_stream: PushStream | None = HttpPushStream(stream, reader)
        try:
            async for events in stream:
                if chunks := reader.feed(events):
                    if in_reasoning:
                        chunks.insert(0, Chunk(text=REASONING_OPENER))
                        in_reasoning = False
                    yield chunks
                    if push_stream is not None and not reader.finished:
                        yield push_stream
                        push_stream = None
                if reader.fault is not None:
                    raise self._redact_error(reader.fault)
                if reader.ended:
                    if not reader.cut:
                        stream.drain()
                    return
                if reader.finished:
                    stream.shorten_timeout(USAGE_SECONDS)
        except ResponseInterrupted:
            if not reader.finished:
                raise
        finally:
            stream.close()
        yield reader.end()

    # Overridden by adapters.

    async def probe(self) -> Probe:
        """Read version and models; probe the capabilities again whenever the server may have changed."""
        cards = await self._probe_client.list_models(self.api, self.settings.model)
        version = await self._probe_client.fetch_version(self.version_path)
        models = tuple([Model(id=card.id, created=card.created or 0) for card in cards])
        last = self._monitor.last_probe
        if last is None or not self._monitor.is_healthy or (last.version, last.models) != (version, models):
            capabilities = await self.probe_capabilities(cards) if cards else ProbedCapabilities()
        else:
            capabilities = last.capabilities
        return Probe(
            version=version,
            models=models,
            contexts=_context_sizes(cards, self.settings.context),
            capabilities=capabilities,
        )

    def _takes_effort(self, model: str, probed: ProbedCapabilities) -> bool | None:
        return probed.takes_effort

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        """Find out what can be learnt without making the engine generate. There is at least one model."""
        return ProbedCapabilities(can_count_tokens=await self._can_count_tokens(cards[0].id))

    def _to_base_path(self, path: str) -> str:
        """Return the path prefix of the engine; the configured URL may or may not include the path of the API."""
        return path.removesuffix(self.api)

    def _make_raw_endpoint(self, field_names: FieldNames) -> EngineEndpoint:
        stream_fields = {
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if self._is_token_level else {}),
        }
        return self._make_openai_endpoint(
            "completions", RawBody(field_names, stream_fields).build, TextCompletionReader
        )

    def _must_generate_whole(self, request: GenerationRequest) -> bool:
        """Return whether the engine can return this response only unstreamed."""
        sampling = request.sampling
        return (
            (sampling.best_of or 1) > 1
            or sampling.prompt_logprobs is not None
            or request.kv_transfer_params is not None
        )

    # Requests to the engine.

    def _make_openai_endpoint(self, path: str, body: BodyBuilder, reader: type[ChatCompletionReader]) -> EngineEndpoint:
        def make_reader(request: GenerationRequest) -> ChatCompletionReader:
            sampling = request.sampling
            must_cut = self.includes_stop and sampling.stop and not sampling.include_stop_str_in_output
            return reader(self._label, sampling, StopStringCutter(sampling.stop) if must_cut else None)

        return EngineEndpoint(f"{self.api}/{path}", body, wire.COMPLETION, make_reader, reader)

    async def _render_prompt(self, request: GenerationRequest) -> tuple[GenerationRequest, bool]:
        """Return the request with its chat tokenized, and whether the prompt ends within reasoning."""
        prompt = request.prompt
        in_reasoning = False
        if isinstance(prompt, TokenPrompt):
            self._check_tokens(prompt.tokens, "prompt")
        if isinstance(prompt, ChatPrompt):
            prompt = TokenPrompt(await self._tokenize_chat(request.model, prompt, request.effort))
            in_reasoning = self._ends_in_reasoning(prompt.tokens)
        elif isinstance(prompt, TokenPrompt) and "tokens" not in (await self.capabilities(request.model)).other_levels:
            if not self._is_token_level:
                raise errors.UnsupportedParameter(
                    f"The {self.name} engine accepts texts, not token ids.", param="prompt"
                )
        elif isinstance(prompt, TextPrompt) and (self.splits_text or request.sampling.max_tokens is None):
            prompt = await self._try_tokenize(request.model, prompt)
        return self._set_max_tokens(replace(request, prompt=prompt)), in_reasoning

    def _set_max_tokens(self, request: GenerationRequest) -> GenerationRequest:
        """Limit max_tokens to the rest of the context: without it, raw completions stop after some 16 tokens."""
        context, prompt = self._context_size(request.model), request.prompt
        if context is None or not isinstance(prompt, TokenPrompt):
            return request
        available = context - len(prompt.tokens)
        if available < 1:
            raise errors.ContextTooLong(
                f"The input has {len(prompt.tokens)} tokens, and this model takes {context} with the answer.",
                param="input",
            )
        max_tokens = available if request.sampling.max_tokens is None else min(request.sampling.max_tokens, available)
        return replace(request, sampling=replace(request.sampling, max_tokens=max_tokens))

    def _ends_in_reasoning(self, tokens: Sequence[int]) -> bool:
        openers = self._last_probe.capabilities.reasoning_openers
        return any(tuple(tokens[-len(opener) :]) == opener for opener in openers)

    async def _prepare_request(self, request: GenerationRequest) -> tuple[EngineEndpoint, GenerationRequest, bool]:
        """Return the endpoint for the request, the request as it is sent, and whether it ends within reasoning."""
        if self._is_token_level or type(request.prompt) is not ChatPrompt:
            return self._raw_endpoint, *await self._render_prompt(request)
        return self._chat_endpoint, request, False

    async def _start_stream(self, request: GenerationRequest) -> "_StartedRequest":
        endpoint, request, in_reasoning = await self._prepare_request(request)
        body = endpoint.body(request, stream=True)
        try:
            stream = await self._client.post_stream(endpoint.path, body, endpoint.decoder)
        except errors.AntiphonError as error:
            raise self._map_error(error, request.model) from None
        return _StartedRequest(endpoint, request, in_reasoning, stream)

    def _map_error(self, error: errors.AntiphonError, model: str) -> errors.AntiphonError:
        """Map an error before the first chunk. If the engine could not be reached, check its health soon."""
        if isinstance(error, EngineHttpError):
            return map_http_error(error, self._label, model)
        if isinstance(error, NotAStream) and (reported := find_error(error.body)) is not None:
            return map_stream_error(self._label, reported)
        if isinstance(error, ConnectionLost | errors.Unavailable):
            self._monitor.probe_soon()
        return self._redact_error(error)

    def _may_keep_waiting(self, since: float) -> bool:
        """Return whether to wait for an unstreamed response: while the engine is healthy, up to `run_timeout`."""
        return self._monitor.is_healthy and asyncio.get_running_loop().time() < since + self.settings.run_timeout

    def _redact_error(self, error: errors.AntiphonError) -> errors.AntiphonError:
        """Remove the key from a message that quotes the engine."""
        error.message = self._client.redact_key(error.message.encode("utf-8", "replace")).decode()
        error.args = (error.message,)
        return error


class _StartedRequest(Struct, frozen=True):
    """A generation request as it was sent, and the event stream of its response."""

    endpoint: EngineEndpoint
    request: GenerationRequest
    in_reasoning: bool  # the prompt ends within reasoning
    stream: EventStream[Any]


def _without_generation(capabilities: Capabilities, embedding_fields: frozenset[str]) -> Capabilities:
    """Remove the capabilities that concern output, for a model that does not generate."""
    supported_fields = (
        capabilities.supported_fields & embedding_fields if "embed" in capabilities.tasks else frozenset[str]()
    )
    return replace(
        capabilities,
        supported_fields=supported_fields,
        unsupported_reasons={},
        other_levels=frozenset(),
        parsers={},
        can_generate_whole=False,
    )


def _context_sizes(cards: Sequence[wire.ModelCard], limit: int | None) -> dict[str, int]:
    """Return context sizes by model: vLLM and SGLang report `max_model_len`, llama.cpp `meta.n_ctx`.

    `limit`: the operator's, which also stands for those that are not reported.
    """
    reported = {card.id: card.max_model_len or (card.meta or {}).get("n_ctx") for card in cards}
    sizes = {
        name: min_limit(size if isinstance(size, int) and size > 0 else None, limit) for name, size in reported.items()
    }
    return {name: size for name, size in sizes.items() if size is not None}
