"""Ollama's OpenAI endpoint. What a model of it can do is asked for each, when it is first needed."""

from typing import ClassVar

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from antiphon.engines.base import FALLEN, Capabilities, Deed
from antiphon.engines.client import Refused
from antiphon.engines.connection import Address
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.engines.http.health_monitor import Probe

# What Ollama says that a model can do → the fields that need it.
_NEEDED = {"tools": ("tools", "parallel_tool_calls"), "vision": ("input_image",), "thinking": ("reasoning.effort",)}
_DEEDS: dict[str, Deed] = {"completion": "generate", "embedding": "embed"}


class Shown(Struct):
    capabilities: list[str] | None = None  # None: a version that does not tell


SHOWN = Decoder(Shown)


class Ollama(HttpEngine):
    name = "ollama"
    port = 11434
    version_path = "/api/version"
    goes_on = True  # by the templates of its models
    takes = frozenset({"text"})
    deeds: ClassVar[dict[Deed, str]] = {"embed": "/v1/embeddings"}
    embedding_fields = frozenset({"dimensions"})
    embeds_tokens = False

    def __init__(self, settings: HttpSettings, address: Address | None = None) -> None:
        super().__init__(settings, address)
        self._shown: dict[str, Shown] = {}

    async def probe(self) -> Probe:
        found = await super().probe()
        self._shown.clear()
        return found

    async def capabilities(self, model: str) -> Capabilities:
        able = replace(await super().capabilities(model), standing=FALLEN)  # a model may have another file since
        if model not in self._shown:
            self._shown[model] = await self._show(model)
        can = self._shown[model].capabilities
        if can is None:
            return able
        missing = {field: f"The model is not made for {ability}." for ability, fields in _NEEDED.items()
                   if ability not in can for field in fields}  # fmt: skip
        does = frozenset([deed for ability, deed in _DEEDS.items() if ability in can])
        return replace(able, honours=able.honours - missing.keys(), lacks=able.lacks | missing, does=does)

    async def _show(self, model: str) -> Shown:
        try:
            return await self._asking.post("/api/show", {"model": model}, SHOWN)
        except Refused:
            return Shown()
