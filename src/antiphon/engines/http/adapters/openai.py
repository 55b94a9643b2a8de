"""Adapter for OpenAI and for any server with its chat completions API."""

import re
from collections.abc import Sequence
from typing import ClassVar

from antiphon.engines.base import Task
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import (
    AUDIO_PARTS,
    NO_RAW_FORMATS,
    Column,
    SentField,
    UnsentField,
    UnsupportedField,
    same_cell,
)
from antiphon.engines.http.health_monitor import ProbedCapabilities
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import paths_below

_OPENAI_REASONING_MODEL = re.compile(r"(.*/)?(o[1-9]|gpt-[5-9])")


class OpenAI(HttpEngine):
    """The path of the URL is that of the API itself, like the `base_url` of OpenAI's own client."""

    name = "openai"
    title = "OpenAI and compatible servers"
    port = 80
    api = ""
    task_paths: ClassVar = paths_below("", "embed", "moderate", "transcribe", "translate", "speak")
    embedding_fields = frozenset({"dimensions"})
    fields: ClassVar[Column] = {
        **same_cell(
            UnsupportedField("OpenAI's API has no such field."),
            *("top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens", "chat_template_kwargs"),
        ),
        "include_stop_str_in_output": UnsupportedField("OpenAI's API always omits the stop string."),
        "cache_salt": UnsentField("its caches are per organisation; see `prompt_cache_key` for tenants"),
        "prompt_cache_key": SentField("prompt_cache_key", note="with tenants, a digest of the key and the tenant"),
        "reasoning items": UnsentField("the API accepts no reasoning text"),
        "input_audio": AUDIO_PARTS,
    }
    raw_fields: ClassVar[Column] = {"text.format": NO_RAW_FORMATS}
    parses_control_tokens = False  # the API separates control tokens from text itself

    async def probe_capabilities(self, cards: Sequence[wire.ModelCard]) -> ProbedCapabilities:
        """Probe which paths exist; the API does not report the tasks of each model."""
        tasks: frozenset[Task] = await self._probe_tasks() | {"generate"}
        has_completions = await self._probe_client.has_path("/completions")
        return ProbedCapabilities(
            raw_levels=frozenset({"text", "tokens"}) if has_completions else frozenset(),
            tasks={card.id: tasks for card in cards},
        )

    def _takes_effort(self, model: str, probed: ProbedCapabilities) -> bool | None:
        """OpenAI rejects the effort for its models that do not reason; other servers may ignore it."""
        return _OPENAI_REASONING_MODEL.match(model) is not None or None

    def _to_base_path(self, path: str) -> str:
        return path or "/v1"
