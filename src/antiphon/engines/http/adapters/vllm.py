"""Adapter for vLLM's OpenAI server.

The server does not report its startup options, so requests are sent that it rejects before working on them. The error
texts reveal whether it parses tool calls and whether the model supports images and audio.
"""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from antiphon.core.prompt import Grammar, Json
from antiphon.engines.base import Task
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import AUDIO_PARTS, Column, SentField, response_format, same_name
from antiphon.engines.http.health_monitor import ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import HELLO_MESSAGE, PROBE_TOOL, paths_below

# 32 × 32 grey pixels.
_TEST_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABC"
    "AAAfN5c2AAAAAABJRU5ErkJggg=="
)
_IMAGE_MESSAGE: Json = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _TEST_IMAGE}}]}
# Four samples of silence.
_TEST_AUDIO = {"data": "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQgAAAAAAAAAAAAAAA==", "format": "wav"}
_AUDIO_MESSAGE: Json = {"role": "user", "content": [{"type": "input_audio", "input_audio": _TEST_AUDIO}]}


def _to_grammar(grammar: Grammar) -> Json:
    return {"grammar": grammar.definition}


class Vllm(HttpEngine):
    name = "vllm"
    title = "vLLM"
    port = 8000
    version_path = "/version"
    levels = frozenset({"chat", "tokens"})
    raw_levels = frozenset({"text", "tokens"})
    counting_path = "/tokenize"
    task_paths: ClassVar[dict[Task, str]] = {
        **paths_below("/v1", "generate", "embed"),
        **paths_below("", "tokenize", "detokenize", "score", "rerank", "classify", "pooling"),
        **paths_below("/v1", "transcribe", "translate", "speak"),
    }
    embedding_fields = frozenset({"dimensions", "truncate_prompt_tokens"})
    fields: ClassVar[Column] = {
        "best_of": SentField("n", note="beam width; not streamed", also={"use_beam_search": True}),
        **same_name("length_penalty", "min_tokens", "stop_token_ids", "return_token_ids", "cache_salt", "priority"),
        **same_name("request_id", "mm_processor_kwargs"),
        "input_audio": AUDIO_PARTS,
        "structural_tag": SentField("response_format", response_format),
        "grammar.regex": SentField("structured_outputs", lambda grammar: {"regex": grammar.definition}),
        "grammar.gbnf": SentField("structured_outputs", _to_grammar),
        "grammar.lark": SentField("structured_outputs", _to_grammar, "it converts them to GBNF"),
        "prompt_logprobs": SentField("prompt_logprobs", note="not streamed"),
        "kv_transfer_params": SentField("kv_transfer_params", note="not streamed"),
    }

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        model, tasks = cards[0].id, await self._probe_tasks()
        if "generate" not in tasks:
            return ProbedCapabilities(tasks={card.id: tasks for card in cards})
        parses_tools, supports_images, supports_audio = await asyncio.gather(
            self._parses_tools(model), self._supports_images(model), self._supports_audio(model)
        )
        reasons = {} if supports_images else {"input_image": "The model does not support images."}
        if not supports_audio:
            reasons["input_audio"] = "The model does not support audio."
        if not parses_tools:
            reasons["tools"] = "It was started without --enable-auto-tool-choice and --tool-call-parser."
        return ProbedCapabilities(
            can_count_tokens=await self._can_count_tokens(model),
            tasks={card.id: tasks for card in cards},
            unsupported_reasons=reasons,
            parsers={"tools": "yes"} if parses_tools else {},
            reasoning_openers=await self._probe_reasoning_openers(model),
            takes_effort=await self._probe_effort(model),
            template_has_tools=await self._template_has_tools(model),
        )

    async def _parses_tools(self, model: str) -> bool:
        """Return whether tool calls are parsed: the server checks the tools first, then rejects the template."""
        body: Json = {"model": model, "messages": [HELLO_MESSAGE], "tools": [PROBE_TOOL], "tool_choice": "auto"}
        body |= {"chat_template": "-", "max_completion_tokens": 1}
        return "--tool-call-parser" not in (
            await self._probe_client.fetch_error_text("/v1/chat/completions", body) or ""
        )

    async def _supports_images(self, model: str) -> bool:
        error_text = await self._probe_client.fetch_error_text(
            "/tokenize", {"model": model, "messages": [_IMAGE_MESSAGE]}
        )
        return "multimodal" not in (error_text or "")

    async def _supports_audio(self, model: str) -> bool:
        """Return whether audio is accepted: a model may lack it, and the server may lack the libraries that read it."""
        body: Json = {"model": model, "messages": [_AUDIO_MESSAGE]}
        return await self._probe_client.fetch_error_text("/tokenize", body) == ""
