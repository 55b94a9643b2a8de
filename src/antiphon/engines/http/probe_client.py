"""Small questions to an engine about itself. None of them makes it work on anything."""

import asyncio
import logging
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from antiphon.core.prompt import Json
from antiphon.engines.client import Client, Refused
from antiphon.engines.http.error_mapping import words_of
from antiphon.engines.http.readers import wire
from antiphon.errors import EngineFailed

T = TypeVar("T")

log = logging.getLogger(__name__)

AT_ONCE = 4  # questions
ABSENT = frozenset({404, 405, 501})  # no such path; llama.cpp: a path that it was not started for
ANYTHING: Decoder[Any] = Decoder()


class Asking:
    """`root` stands before all paths."""

    def __init__(self, client: Client, root: str) -> None:
        self._client = client
        self._root = root
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._missing: tuple[str, ...] = ()  # models that the operator wants and it does not list

    async def get(self, path: str, decoder: Decoder[T]) -> T:
        return await self._client.get(self._root + path, decoder)

    async def post(self, path: str, body: Json, decoder: Decoder[T]) -> T:
        return await self._client.post(self._root + path, msgspec.json.encode(body), decoder)

    async def cards(self, api: str, wanted: tuple[str, ...]) -> list[wire.ModelCard]:
        """The models, by the names they are asked for; only those that the operator wants, if he says which."""
        cards = {card.id: card for card in await self._listed(api, bool(wanted)) if card.id}
        self._warn(tuple([name for name in wanted if cards and name not in cards]))
        return [cards.get(name) or wire.ModelCard(id=name) for name in wanted or cards]

    def _warn(self, missing: tuple[str, ...]) -> None:
        """Once: some go by other names than those that are listed, and others were mistyped."""
        if missing and missing != self._missing:
            log.warning("%s does not list what it is to serve: %s", self._client.who, ", ".join(missing))
        self._missing = missing

    async def _listed(self, api: str, known: bool) -> list[wire.ModelCard]:
        try:
            return (await self.get(f"{api}/models", wire.MODELS)).data or []
        except Refused as refused:
            if refused.answered == 404 and known:
                return []  # not everyone lists them
            raise

    async def version(self, path: str) -> str | None:
        try:
            return (await self.get(path, wire.VERSION)).version if path else None
        except EngineFailed:
            return None  # nothing depends on it

    async def has(self, path: str) -> bool:
        """Whether there is such a path: an empty request is refused by who has it, for what is missing in it."""
        return await self.refusal(path, {}) is not None

    async def refusal(self, path: str, body: Json) -> str | None:
        """Its words about a request that it should refuse; empty if it does not; None if it has no such path."""
        try:
            async with self._turn:
                await self.post(path, body, ANYTHING)
        except Refused as refused:
            return None if refused.answered in ABSENT else words_of(refused.body)
        except EngineFailed:
            return ""  # not the JSON that was expected, but an answer
        return ""
