"""Adapter for Ollama's OpenAI endpoint. The capabilities of a model are requested when it is first used."""

from typing import ClassVar

from msgspec import Struct
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, Task
from antiphon.engines.client import EngineHttpError
from antiphon.engines.connection import EngineAddress
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.engines.http.fields import (
    DROPS_LATER_CALLS,
    NO_RAW_FORMATS,
    Column,
    SentField,
    UnsentField,
    UnsupportedField,
    same_cell,
)
from antiphon.engines.http.health_monitor import Probe

# Ollama's capability of a model → request fields that need it.
_FIELDS_BY_ABILITY = {
    "tools": ("tools", "parallel_tool_calls"),
    "vision": ("input_image",),
    "thinking": ("reasoning.effort",),
}
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
_TASKS_BY_ABILITY: dict[str, Task] = {"completion": "generate", "embedding": "embed"}


class ShowReply(Struct):
    capabilities: list[str] | None = None  # None: the version does not report them


SHOW_REPLY = Decoder(ShowReply)


class Ollama(HttpEngine):
    name = "ollama"
    title = "Ollama"
    port = 11434
    version_path = "/api/version"
    continues_assistant = True  # by the chat templates of its models
    raw_levels = frozenset({"text"})
    task_paths: ClassVar[dict[Task, str]] = {"embed": "/v1/embeddings"}
    embedding_fields = frozenset({"dimensions"})
    embeds_tokens = False
    fields: ClassVar[Column] = {
        **same_cell(
            UnsupportedField("Ollama's OpenAI endpoint has no such field."),
            *("top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens"),
            *("chat_template_kwargs", "logit_bias"),
        ),
        "max_output_tokens": SentField("max_tokens"),
        "include_stop_str_in_output": UnsupportedField("Ollama always omits the stop string."),
        "reasoning.effort": SentField(
            "reasoning_effort", lambda effort: _EFFORTS.get(effort, effort), "minimal as low, xhigh and max as high"
        ),
        "tool_choice": UnsentField(
            "it has no such field: Antiphon sends only the named tool, and retries if no tool is called"
        ),
        "parallel_tool_calls": DROPS_LATER_CALLS,
        "reasoning items": SentField("reasoning"),
    }
    raw_fields: ClassVar[Column] = {"text.format": NO_RAW_FORMATS}

    def __init__(self, settings: HttpSettings, address: EngineAddress | None = None) -> None:
        super().__init__(settings, address)
        self._show_replies: dict[str, ShowReply] = {}

    async def probe(self) -> Probe:
        probe = await super().probe()
        self._show_replies.clear()
        return probe

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        if model not in self._show_replies:
            self._show_replies[model] = await self._fetch_show_reply(model)
        if (abilities := self._show_replies[model].capabilities) is None:
            return capabilities
        missing = {field: f"The model does not support {ability}." for ability, fields in _FIELDS_BY_ABILITY.items()
                   if ability not in abilities for field in fields}  # fmt: skip
        tasks = frozenset([task for ability, task in _TASKS_BY_ABILITY.items() if ability in abilities])
        return replace(
            capabilities,
            supported_fields=capabilities.supported_fields - missing.keys(),
            unsupported_reasons=capabilities.unsupported_reasons | missing,
            takes_effort=True,
            tasks=tasks,
        )

    async def _fetch_show_reply(self, model: str) -> ShowReply:
        try:
            return await self._quick_client.post("/api/show", encode({"model": model}), SHOW_REPLY)
        except EngineHttpError:
            return ShowReply()
