"""Adapter for llama.cpp's server.

The server notices a closed connection only when it has something to send, so progress events on the prompt are
requested. Queued requests cannot be cancelled, so at most as many are sent as it has slots. Where a chat template has
no tools, the server describes them in a format that only it can parse; so the template is checked.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar

from msgspec import Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Chunk, GenerationRequest, Json, Segment, TokenPrompt
from antiphon.engines.base import Task
from antiphon.engines.client import EngineHttpError
from antiphon.engines.embedded.wire import EVENT_DECODER, LlamaCppEvent, LlamaCppStreamDecoder
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.body import FieldNames, RawBody
from antiphon.engines.http.endpoints import EngineEndpoint, StreamReader
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.fields import (
    AUDIO_PARTS,
    Column,
    SentField,
    UnsentField,
    UnsupportedField,
    grammar_definition,
)
from antiphon.engines.http.health_monitor import Probe, ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import paths_below
from antiphon.engines.llamacpp import wire as llamacpp


class Modalities(Struct):
    vision: bool = False
    audio: bool = False


class Props(Struct):
    total_slots: int | None = None
    build_info: str | None = None
    modalities: Modalities = field(default_factory=Modalities)
    chat_template: str = ""


class AppliedTemplate(Struct):
    prompt: str


PROPS = Decoder(Props)
APPLIED_TEMPLATE = Decoder(AppliedTemplate)
_ALWAYS_TASKS: frozenset[Task] = frozenset({"tokenize", "detokenize"})
_OPTIONAL_TASKS: tuple[Task, ...] = ("embed", "rerank")


def _bias_pairs(bias: dict[str, float]) -> list[list[float]]:
    """Return (token id, bias) pairs: llama.cpp would tokenize the keys of an object as text."""
    return [[int(token), value] for token, value in bias.items()]


class LlamaCppServer(HttpEngine):
    name = "llamacpp-server"
    title = "llama.cpp's server"
    port = 8080
    counting_path = "/v1/chat/completions/input_tokens"
    stream_fields: ClassVar[Json] = {"return_progress": True}
    continues_assistant = True  # unless it was started with --no-prefill-assistant, which it does not report
    levels = frozenset({"chat", "tokens"})
    raw_levels = frozenset({"text", "tokens"})
    splits_text = True
    task_paths: ClassVar = {**paths_below("/v1", "embed", "rerank"), **paths_below("", "tokenize", "detokenize")}
    fields: ClassVar[Column] = {
        "max_output_tokens": SentField("max_tokens"),
        "top_k": SentField("top_k", lambda value: max(value, 0), "−1 as 0, its value for all tokens"),
        "repetition_penalty": SentField("repeat_penalty"),
        "include_stop_str_in_output": UnsupportedField("llama.cpp's chat endpoint always omits the stop string."),
        "seed": SentField(
            "seed",
            lambda value: min(value, llamacpp.RANDOM_SEED - 1),
            "2³²−1, its value for a random seed, as one less",
        ),
        "skip_special_tokens": UnsupportedField("llama.cpp's chat endpoint always removes special tokens."),
        "top_logprobs": SentField("top_logprobs", lambda value: max(value, 1), "at least 1", {"logprobs": True}),
        "grammar.gbnf": SentField("grammar", grammar_definition),
        "logit_bias": SentField("logit_bias", _bias_pairs, "as pairs"),
        "input_audio": AUDIO_PARTS,
    }
    raw_fields: ClassVar[Column] = {
        "max_output_tokens": SentField("n_predict"),
        "include_stop_str_in_output": UnsentField("Antiphon adds it"),
        "top_logprobs": SentField("n_probs", lambda value: max(value, 1), "at least 1"),
        "text.format": SentField(
            "json_schema", lambda constraint: llamacpp.to_llamacpp_constraint(constraint).schema, "without white space"
        ),
        "stop_token_ids": UnsentField("Antiphon ends the output there"),
        "return_token_ids": UnsentField("they are always returned"),
    }

    async def probe(self) -> Probe:
        probe, props = await super().probe(), await self._fetch_props()
        slots = props.total_slots if props.total_slots and props.total_slots > 0 else None
        reasons = {} if props.modalities.vision else {"input_image": "The model does not support images."}
        if not props.modalities.audio:
            reasons["input_audio"] = "The model does not support audio."
        capabilities = replace(
            probe.capabilities,
            unsupported_reasons=reasons,
            template_has_tools=not self._is_token_level or "tools" in props.chat_template,
            template_source=props.chat_template if self._is_token_level else "",
        )
        return replace(probe, version=props.build_info, slots=slots, capabilities=capabilities)

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        tasks = _ALWAYS_TASKS | frozenset(
            [task for task in _OPTIONAL_TASKS if await self._probe_client.has_path(self.task_paths[task])]
        )
        if tasks == _ALWAYS_TASKS or await self._can_generate():
            tasks |= {"generate"}
        model = cards[0].id
        return ProbedCapabilities(
            can_count_tokens=await self._can_count_tokens(model),
            tasks={card.id: tasks for card in cards},
            reasoning_openers=await self._probe_reasoning_openers(model),
            takes_effort=await self._probe_effort(model),
        )

    async def _can_generate(self) -> bool:
        """Return whether a server for embeddings or reranking generates too; otherwise this request is rejected."""
        error_text = await self._probe_client.fetch_error_text(
            "/completion", {"prompt": "a", "n_predict": 0, "stream": False}
        )
        return "does not support logits" not in (error_text or "")

    def _make_raw_endpoint(self, field_names: FieldNames) -> EngineEndpoint:
        stream_fields = {
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": True,
            "response_fields": llamacpp.RESPONSE_FIELDS,
        }
        body = RawBody(field_names, stream_fields, shown_tokens_field="preserved_tokens").build
        return EngineEndpoint("/completion", body, EVENT_DECODER, partial(LlamaCppReader, self._label))

    async def _tokenize_text(self, model: str, segments: Sequence[Segment], special: bool) -> tuple[int, ...]:
        """Tokenize texts; control tokens are parsed in control segments only."""
        tokens: list[int] = []
        for control, run in groupby(segments, key=lambda segment: segment.control):
            text = "".join([segment.text for segment in run])
            tokens += await self._tokenize(model, text, special and not tokens, control)
        return tuple(tokens)

    async def _tokenize_chat(self, model: str, prompt: ChatPrompt, effort: str | None) -> tuple[int, ...]:
        body = self._chat_fields(model, prompt)
        rendered = (await self._post_quick(model, "/apply-template", body, APPLIED_TEMPLATE)).prompt
        return tuple(await self._tokenize(model, rendered, True, True))

    async def _tokenize(self, model: str, text: str, special: bool, control: bool) -> list[int]:
        body: Json = {"content": text, "add_special": special, "parse_special": control}
        return (await self._post_quick(model, self._task_path("tokenize"), body, wire.TOKENIZE_REPLY)).tokens

    async def _fetch_props(self) -> Props:
        try:
            return await self._quick_client.get("/props", PROPS)
        except EngineHttpError:
            return Props()


class LlamaCppReader(StreamReader):
    """Reader of `/completion`; its events are read as the embedded engine reads them."""

    def __init__(self, label: str, request: GenerationRequest) -> None:
        super().__init__(label)
        prompt = request.prompt.tokens if isinstance(request.prompt, TokenPrompt) else ()
        self._stream_decoder = LlamaCppStreamDecoder(request.sampling, prompt)

    def feed(self, events: Iterable[LlamaCppEvent]) -> list[Chunk]:
        chunks = self._stream_decoder.decode(self._until_error(events))
        self.ended, self.cut = any(chunk.finish is not None for chunk in chunks), self._stream_decoder.stopped
        return [chunk for chunk in chunks if chunk.text or chunk.tokens or chunk.finish is not None]

    def _until_error(self, events: Iterable[LlamaCppEvent]) -> Iterable[LlamaCppEvent]:
        """Yield the events before an error or the end."""
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, {"message": event.error.message, "type": event.error.type})
                return
            yield event
            if event.stop:
                return
