"""Adapter for OpenVINO Model Server: its OpenAI endpoints are below /v3, its version is reported through KServe's /v2.

Each of its models supports one task. The error for a request without any fields reveals which.
"""

from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.prompt import GenerationRequest, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.engines.base import Task
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import (
    DROPS_LATER_CALLS,
    NO_RAW_FORMATS,
    NO_SUCH_FIELD,
    ChosenLogprobs,
    Column,
    SentField,
    UnsupportedField,
    response_format,
    same_cell,
    same_name,
)
from antiphon.engines.http.health_monitor import ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import paths_below
from antiphon.errors import UnsupportedParameter


def _schema_format(constraint: JsonObject | JsonSchema) -> Json:
    return response_format(JsonSchema({"type": "object"}) if isinstance(constraint, JsonObject) else constraint)


def _tag_format(constraint: StructuralTag) -> Json:
    """Return the `format` of a structural tag, which is what OVMS accepts; the older `structures` are not supported."""
    tag_format = constraint.tag.get("format")
    if not isinstance(tag_format, dict):
        raise UnsupportedParameter(
            "'text.format' with `structures` is not supported by the ovms engine: send a `format`.", param="text.format"
        )
    return tag_format


class Ovms(HttpEngine):
    name = "ovms"
    title = "OpenVINO Model Server"
    port = 8000
    api = "/v3"
    version_path = "/v2"
    includes_stop = True
    raw_levels = frozenset({"text"})
    task_paths: ClassVar = paths_below("/v3", "embed", "rerank", "tokenize", "transcribe", "translate")
    embeds_tokens = False
    tokenize_field = "text"
    fields: ClassVar[Column] = {
        "include_stop_str_in_output": SentField(
            "include_stop_str_in_output", note="it always includes it in a stream; Antiphon removes it unless requested"
        ),
        "n": SentField("n", note="with `best_of`; otherwise as several calls, ordered by their log probabilities"),
        "best_of": SentField("best_of", note="beam width; not streamed"),
        **same_name("length_penalty", "num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"),
        "top_logprobs": ChosenLogprobs("logprobs", lambda count: True, "no alternatives; not streamed"),
        "text.format": SentField("response_format", _schema_format, "json_object as the schema of any object"),
        "reasoning.effort": SentField(
            "chat_template_kwargs", lambda effort: {"enable_thinking": effort != "none"}, "as `enable_thinking`"
        ),
        "structural_tag": SentField("response_format", _tag_format, "the `format` within it"),
        "grammar.regex": SentField("response_format", lambda grammar: {"type": "regex", "pattern": grammar.definition}),
        "grammar.gbnf": SentField(
            "response_format", lambda grammar: {"type": "grammar", "grammar": grammar.definition}
        ),
        "logit_bias": NO_SUCH_FIELD,
        "parallel_tool_calls": DROPS_LATER_CALLS,
    }
    raw_fields: ClassVar[Column] = {
        **same_cell(NO_RAW_FORMATS, "text.format", "structural_tag", "grammar.regex", "grammar.gbnf"),
        "top_logprobs": UnsupportedField("It returns log probabilities for chats only."),
    }

    def _must_generate_whole(self, request: GenerationRequest) -> bool:
        return request.sampling.logprobs is not None or super()._must_generate_whole(request)

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        return ProbedCapabilities(tasks={card.id: await self._probe_model_tasks(card.id) for card in cards})

    async def _probe_model_tasks(self, model: str) -> frozenset[Task]:
        error_text = (
            await self._probe_client.fetch_error_text(self.task_paths["embed"], {"model": model}) or ""
        ).lower()
        if "query" in error_text or "documents" in error_text:
            return frozenset({"rerank", "tokenize"})
        if "input" in error_text and "endpoint" not in error_text:
            return frozenset({"embed", "tokenize"})
        return frozenset({"generate", "tokenize"})
