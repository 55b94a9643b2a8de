"""Adapter for SGLang's server. Its startup options are reported by /model_info and /server_info.

SGLang does not validate token ids: one outside the vocabulary crashes the server. The size of the vocabulary is taken
from the error for a logit bias on an invalid token.

Its rerank responses are converted to the common format: it returns a plain list, and calls the relevance `score`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.json import Decoder, encode

from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, GenerationRequest, Json, JsonObject, JsonSchema
from antiphon.engines.base import PassthroughReply, Task, clamp_logprob, clamp_token_count
from antiphon.engines.client import DECODE_ERRORS
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.body import FieldNames, RawBody
from antiphon.engines.http.endpoints import EngineEndpoint, StreamReader
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.fields import Column, SentField, grammar_definition, response_format, same_name
from antiphon.engines.http.health_monitor import ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.readers.completion_reader import FINISHES
from antiphon.engines.http.tasks import paths_below
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob


class _Meta(Struct):
    prompt_tokens: int | None = None


class _Ranked(Struct):
    index: int
    score: float
    document: str | None = None
    meta_info: _Meta | None = None


_RANKING = Decoder(list[_Ranked])


def normalise_ranking(reply: PassthroughReply, model: str, label: str) -> PassthroughReply:
    """Convert a rerank response. `label` is the subject of error messages."""
    try:
        ranking = _RANKING.decode(reply.body)
    except DECODE_ERRORS:
        raise EngineFailed(f"{label} sent a rerank response that cannot be decoded.") from None
    tokens = sum([clamp_token_count(one.meta_info.prompt_tokens) for one in ranking if one.meta_info])
    results = [_to_result(one) for one in ranking]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return PassthroughReply(encode({"model": model, "usage": usage, "results": results}))


def _to_result(one: _Ranked) -> Json:
    document = {"document": {"text": one.document}} if one.document is not None else {}
    return {"index": one.index, "relevance_score": one.score, **document}


_TOKEN_TASKS: frozenset[Task] = frozenset({"tokenize", "detokenize"})
_TASKS_BY_KIND: dict[str, frozenset[Task]] = {
    "embed": frozenset({"embed"}),
    "classify": frozenset({"rerank", "classify"}),
}


class EmbeddingInfo(Struct, frozen=True):
    """Task of a model that does not generate, as SGLang reports it; older versions do not report it."""

    task: str = ""
    supports_dimensions: bool = True


class ModelInfo(Struct):
    """Reply of /model_info; the defaults hold for older versions that do not report a field."""

    is_generation: bool = True
    has_image_understanding: bool = True
    tool_call_parser: str | UnsetType | None = UNSET
    reasoning_parser: str | UnsetType | None = UNSET
    model_type: str | None = None
    embedding: EmbeddingInfo = EmbeddingInfo()


class ServerInfo(Struct):
    """Reply of /server_info, with defaults for older versions."""

    incremental_streaming_output: bool = False
    stream_output: bool = False  # name of the option above in older versions
    enable_deterministic_inference: bool = True


MODEL_INFO = Decoder(ModelInfo)
SERVER_INFO = Decoder(ServerInfo)

# A log probability of `/generate`: value, token id, token text.
LogprobTuple = tuple[float | None, int, str | None]


class FinishReason(Struct):
    type: str = ""
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(Struct):
    finish_reason: FinishReason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    output_token_logprobs: list[LogprobTuple] | None = None
    output_top_logprobs: list[list[LogprobTuple] | None] | None = None


class GenerateEvent(Struct):
    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo = field(default_factory=MetaInfo)
    prompt_token_ids: list[int] | None = None
    error: Any = None


GENERATE_EVENT = Decoder(GenerateEvent)


def _schema_text(constraint: JsonObject | JsonSchema) -> str:
    return encode(constraint.schema if isinstance(constraint, JsonSchema) else {"type": "object"}).decode()


def _sampling_params(*names: str, **others: str) -> Column:
    """Return cells for fields within `sampling_params`, under the same name or another."""
    named = {**{name: name for name in names}, **others}
    return {field: SentField(f"sampling_params.{name}") for field, name in named.items()}


class Sglang(HttpEngine):
    name = "sglang"
    title = "SGLang"
    port = 30000
    version_path = "/server_info"
    levels = frozenset({"chat", "tokens"})
    raw_levels = frozenset({"text", "tokens"})
    counting_path = "/tokenize"
    task_paths: ClassVar[dict[Task, str]] = {
        **paths_below("", "tokenize", "detokenize"),
        **paths_below("/v1", "embed", "score", "rerank", "classify", "transcribe"),
    }
    embedding_fields = frozenset({"dimensions"})
    fields: ClassVar[Column] = {
        "include_stop_str_in_output": SentField("no_stop_trim"),
        "seed": SentField(
            "seed", note="rejected by a server that was started without --enable-deterministic-inference"
        ),
        "structural_tag": SentField("response_format", response_format),
        "grammar.regex": SentField("regex", grammar_definition),
        "grammar.gbnf": SentField("ebnf", grammar_definition),
        **same_name("min_tokens", "stop_token_ids", "cache_salt", "priority"),
        "request_id": SentField("rid"),
    }
    raw_fields: ClassVar[Column] = {
        **_sampling_params(
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
            "stop", "ignore_eos", "skip_special_tokens", "logit_bias", "stop_token_ids",
            max_output_tokens="max_new_tokens", seed="sampling_seed", include_stop_str_in_output="no_stop_trim",
            min_tokens="min_new_tokens",
        ),
        "top_logprobs": SentField("top_logprobs_num", also={"return_logprob": True, "return_text_in_logprobs": True}),
        "text.format": SentField("sampling_params.json_schema", _schema_text),
        "structural_tag": SentField(
            "sampling_params.structural_tag", lambda constraint: encode(response_format(constraint)).decode()
        ),
        "grammar.regex": SentField("sampling_params.regex", grammar_definition),
        "grammar.gbnf": SentField("sampling_params.ebnf", grammar_definition),
        "return_token_ids": SentField("return_prompt_token_ids", note="for the prompt; output ids are always returned"),
    }  # fmt: skip
    _is_cumulative = True  # whether each event of `/generate` repeats the output so far

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        info, server = (
            await self._fetch_info("/model_info", MODEL_INFO),
            await self._fetch_info("/server_info", SERVER_INFO),
        )
        self._is_cumulative = not (server.incremental_streaming_output or server.stream_output)
        can_count_tokens = await self._can_count_tokens(cards[0].id)
        tasks = await self._probe_model_tasks(info)
        return ProbedCapabilities(
            can_count_tokens=can_count_tokens,
            tasks={card.id: tasks for card in cards},
            unsupported_reasons=_unsupported_reasons(info, server),
            parsers=_parser_names(info),
            reasoning_openers=await self._probe_reasoning_openers(cards[0].id),
            architecture=info.model_type,
            takes_effort=(info.is_generation and await self._probe_effort(cards[0].id)) or None,
            template_has_tools=await self._template_has_tools(cards[0].id),
            vocabulary_size=await self._probe_vocabulary_size(),
        )

    def _normalise_reply(self, model: str, task: Task, reply: PassthroughReply) -> PassthroughReply:
        return (
            normalise_ranking(reply, model, self._label)
            if task == "rerank"
            else super()._normalise_reply(model, task, reply)
        )

    def _make_raw_endpoint(self, field_names: FieldNames) -> EngineEndpoint:
        body = RawBody(field_names, {}, text_field="text", ids_field="input_ids", sends_model=False).build

        def make_reader(request: GenerationRequest) -> SglangReader:
            return SglangReader(self._label, request, cumulative=self._is_cumulative)

        return EngineEndpoint("/generate", body, GENERATE_EVENT, make_reader)

    async def _probe_model_tasks(self, info: ModelInfo) -> frozenset[Task]:
        """Return the tasks of the model as reported, because all paths exist for every model."""
        token_tasks = frozenset(
            [task for task in _TOKEN_TASKS if await self._probe_client.has_path(self.task_paths[task])]
        )
        if info.is_generation:
            return token_tasks | {"generate", "score"}
        return token_tasks | _TASKS_BY_KIND.get(info.embedding.task, frozenset({"embed", "rerank", "classify"}))

    async def _probe_vocabulary_size(self) -> int | None:
        body: Json = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "logit_bias": {"-1": 0}}}
        last_id = (
            (await self._probe_client.fetch_error_text("/generate", body) or "")
            .partition(" keys in [0, ")[2]
            .partition("]")[0]
        )
        return int(last_id) + 1 if last_id.isascii() and last_id.isdigit() else None

    async def _fetch_info(self, path: str, decoder: Decoder[Any]) -> Any:
        try:
            return await self._quick_client.get(path, decoder)
        except EngineFailed:
            return decoder.decode(b"{}")


def _unsupported_reasons(info: ModelInfo, server: ServerInfo) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if info.tool_call_parser is None:
        reasons["tools"] = "It was started without --tool-call-parser."
    if not info.has_image_understanding:
        reasons["input_image"] = "The model does not support images."
    if not info.is_generation and not info.embedding.supports_dimensions:
        reasons["dimensions"] = "The model's embeddings have a fixed size."
    if not server.enable_deterministic_inference:
        reasons["seed"] = "It was started without --enable-deterministic-inference, and would ignore it."
    return reasons


def _parser_names(info: ModelInfo) -> dict[str, str]:
    reported = {"tools": info.tool_call_parser, "reasoning": info.reasoning_parser}
    return {kind: name for kind, name in reported.items() if isinstance(name, str)}


class SglangReader(StreamReader):
    """Reader of `/generate`.

    By default every event repeats the output so far with its token ids and log probabilities (`cumulative`); a server
    that was started with --incremental-streaming-output sends only what is new.
    """

    def __init__(self, label: str, request: GenerationRequest, *, cumulative: bool) -> None:
        super().__init__(label)
        self._top_count = request.sampling.logprobs
        self._cumulative = cumulative
        self._seen_characters = self._seen_tokens = self._seen_logprobs = 0  # amounts already returned
        self._started = False

    def feed(self, events: Iterable[GenerateEvent]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, event.error)
                break
            chunk = self._to_chunk(event)
            if (ending := event.meta_info.finish_reason) is not None:
                if (finish := self._parse_finish(ending)) is None:
                    break
                self._complete_chunk(chunk, finish, event.meta_info)
                chunks.append(chunk)
                break
            if chunk.text or chunk.tokens or chunk.extras:
                chunks.append(chunk)
        return chunks

    def _to_chunk(self, event: GenerateEvent) -> Chunk:
        text, ids = event.text or "", event.output_ids or []
        if self._cumulative:
            text, ids = text[self._seen_characters :], ids[self._seen_tokens :]
        self._seen_characters += len(text)
        self._seen_tokens += len(ids)
        chunk = Chunk(text=text, tokens=tuple(ids))
        if self._top_count is not None:
            chunk.logprobs = self._to_logprobs(event.meta_info)
        if not self._started and event.prompt_token_ids:
            chunk.extras = EngineExtras(prompt_token_ids=event.prompt_token_ids)
        self._started = True
        return chunk

    def _to_logprobs(self, meta: MetaInfo) -> tuple[Logprob, ...]:
        entries, tops = meta.output_token_logprobs or [], meta.output_top_logprobs or []
        begin = self._seen_logprobs if self._cumulative else 0
        self._seen_logprobs = begin + len(entries[begin:])
        ending = meta.finish_reason
        if ending is not None and ending.type == "stop" and isinstance(ending.matched, int):
            entries = entries[:-1]  # the token that ended the output is not part of it
        return tuple([
            _to_logprob(one, tops[at] if at < len(tops) else None, self._top_count or 0)
            for at, one in enumerate(entries)
            if at >= begin
        ])  # fmt: skip

    def _parse_finish(self, ending: FinishReason) -> FinishKind | None:
        if (finish := FINISHES.get(ending.type)) is None:
            error = {"message": ending.message or ending.type[:80], "code": ending.status_code}
            self.fault = map_stream_error(self._label, error)
        return finish

    def _complete_chunk(self, chunk: Chunk, finish: FinishKind, meta: MetaInfo) -> None:
        self.ended = True
        chunk.finish = finish
        chunk.counts = wire.make_token_counts(
            meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens, meta.reasoning_tokens
        )
        matched = meta.finish_reason.matched if meta.finish_reason is not None else None
        if isinstance(matched, int | str):
            chunk.extras = chunk.extras or EngineExtras()
            chunk.extras.stop_reason = matched


def _to_logprob(entry: LogprobTuple, top: Sequence[LogprobTuple] | None, top_count: int) -> Logprob:
    tops = [
        TopLogprob(token=one[2] or "", bytes=_token_bytes(one), logprob=clamp_logprob(one[0]))
        for one in (top or ())[:top_count]
    ]
    return Logprob(token=entry[2] or "", bytes=_token_bytes(entry), logprob=clamp_logprob(entry[0]), top_logprobs=tops)


def _token_bytes(entry: LogprobTuple) -> list[int]:
    return list((entry[2] or "").encode())
