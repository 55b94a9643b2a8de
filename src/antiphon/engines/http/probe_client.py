"""Requests that probe an engine's properties without making it generate."""

import asyncio
import logging
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from antiphon.core.prompt import Json
from antiphon.engines.client import EngineClient, EngineHttpError
from antiphon.engines.http.error_mapping import error_text
from antiphon.engines.http.readers import wire
from antiphon.errors import EngineFailed

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_CONCURRENT = 4  # concurrent probes
ABSENT_STATUSES = frozenset({404, 405, 501})  # no such path; 501: llama.cpp was started without the feature
ANY_JSON: Decoder[Any] = Decoder()


class ProbeClient:
    """Client for probes; `base_path` is the prefix of all paths."""

    def __init__(self, client: EngineClient, base_path: str) -> None:
        self._client = client
        self._base_path = base_path
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT)
        self._missing: tuple[str, ...] = ()  # configured models that the engine does not list

    async def get(self, path: str, decoder: Decoder[T]) -> T:
        return await self._client.get(self._base_path + path, decoder)

    async def post(self, path: str, body: Json, decoder: Decoder[T]) -> T:
        return await self._client.post(self._base_path + path, msgspec.json.encode(body), decoder)

    async def list_models(self, api: str, wanted: tuple[str, ...]) -> list[wire.ModelCard]:
        """Return the models by the names that requests use; only the configured ones if there are any."""
        cards = {card.id: card for card in await self._fetch_cards(api, bool(wanted)) if card.id}
        self._warn_missing(tuple([name for name in wanted if cards and name not in cards]))
        return [cards.get(name) or wire.ModelCard(id=name) for name in wanted or cards]

    def _warn_missing(self, missing: tuple[str, ...]) -> None:
        """Warn once: some models have other names than those listed, others are misspelt."""
        if missing and missing != self._missing:
            log.warning("%s does not list these configured models: %s", self._client.label, ", ".join(missing))
        self._missing = missing

    async def _fetch_cards(self, api: str, optional: bool) -> list[wire.ModelCard]:
        try:
            return (await self.get(f"{api}/models", wire.MODELS)).data or []
        except EngineHttpError as error:
            if error.status_code == 404 and optional:
                return []  # not every server lists its models
            raise

    async def fetch_version(self, path: str) -> str | None:
        try:
            return (await self.get(path, wire.VERSION_REPLY)).version if path else None
        except EngineFailed:
            return None  # nothing depends on the version

    async def has_path(self, path: str) -> bool:
        """Whether a path exists: an empty request to it is rejected because of missing fields."""
        return await self.fetch_error_text(path, {}) is not None

    async def fetch_error_text(self, path: str, body: Json) -> str | None:
        """Return the error text for a request that should be rejected; empty if it is accepted, None without such a
        path.
        """
        try:
            async with self._semaphore:
                await self.post(path, body, ANY_JSON)
        except EngineHttpError as error:
            return None if error.status_code in ABSENT_STATUSES else error_text(error.body)
        except EngineFailed:
            return ""  # a response, although not the expected JSON
        return ""
