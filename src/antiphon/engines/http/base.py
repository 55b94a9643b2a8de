"""What all engines over HTTP share: chats out, chunks in, and a watch over who is there.

An engine's answer is untrusted: whatever it sends, what comes of it is an answer that ended well or a typed error.
Closing the iterator of `generate` closes the connection, which is how these engines learn that nobody listens.
"""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Chunk, Json, Prompt, Sampling, Work
from antiphon.engines.address import Address
from antiphon.engines.base import Capabilities, GeneratesOnly, Model
from antiphon.engines.client import Client, Deadlines, EventStream, Refused
from antiphon.engines.connection import Broken, Lost
from antiphon.engines.http import wire
from antiphon.engines.http.body import Body
from antiphon.engines.http.fields import column, honoured, lacking
from antiphon.engines.http.place import place
from antiphon.engines.http.reading import ChatReader, answers
from antiphon.engines.http.refusals import explained
from antiphon.engines.http.stops import StopCut
from antiphon.engines.http.watch import Probe, Watch
from antiphon.errors import AntiphonError, EngineFailed, StartupError, Unavailable

CONNECTIONS_KEPT = 64
LAST_SECONDS = 5.0  # between the end of an answer and its usage
PROBE = Deadlines(connect=5.0, first=10.0, idle=10.0)
MOST_TOKEN_BYTES = 128  # hardly any token of any vocabulary is longer
_HELLO = ({"role": "user", "content": "Hello!"},)


class HttpSettings(Struct, frozen=True, kw_only=True):
    engine: str  # the URL
    engine_key: str | None = None
    engine_ca: Path | None = None
    model: tuple[str, ...] = ()  # serve these alone; none: whatever it says it has
    first_token_timeout: float = 600.0
    idle_timeout: float = 120.0

    def __repr__(self) -> str:
        """Without the key."""
        return f"HttpSettings(engine={self.engine!r}, model={self.model!r})"


class HttpEngine(GeneratesOnly):
    """A subclass says how an engine is found and asked about itself; the table says what it calls things."""

    name: ClassVar[str]
    port: ClassVar[int]
    api: ClassVar[str] = "/v1"
    version_path: ClassVar[str] = ""  # asked for its version
    counting_path: ClassVar[str] = ""  # asked how many tokens a chat has
    fixed: ClassVar[Json] = {}  # goes into the body of every stream
    includes_stop: ClassVar[bool] = False  # it sends the stop string along while streaming

    def __init__(self, settings: HttpSettings, address: Address | None = None) -> None:
        """`address` leads elsewhere than the URL, if it is given."""
        self.settings = settings
        found = place(settings.engine, self.port, settings.engine_ca)
        address = address or found.address
        if "=" in "".join(settings.model):
            raise StartupError("--model names models as the engine knows them; ID=FILE is for files.")
        self._root = self._prefix(found.path)
        self._who = f"The {self.name} engine"
        deadlines = Deadlines(first=settings.first_token_timeout, idle=settings.idle_timeout)
        key = settings.engine_key
        self._client = Client(address, self._who, deadlines, CONNECTIONS_KEPT, found.host, key)
        self._asking = Client(address, self._who, PROBE, 2, found.host, key)
        self._watch = Watch(self._who, found.host, self.probe)
        self._body = Body(self.name, column(self.name), self.fixed)
        self._honours, self._lacks = honoured(self.name) - {"n"}, lacking(self.name)

    async def open(self) -> None:
        await self._watch.start()

    async def close(self) -> None:
        await self._watch.stop()
        self._client.close()
        self._asking.close()

    def models(self) -> Sequence[Model]:
        known = self._watch.known
        return () if known is None else known.models

    def serves(self, model: str) -> bool:
        return any(one.id == model for one in self.models())

    def healthy(self) -> bool:
        return self._watch.well

    async def capabilities(self, model: str) -> Capabilities:
        known = self._watch.known or Probe()
        return Capabilities(
            prompt="chat",
            honours=self._honours - {"input_image"} if known.blind else self._honours,
            lacks=self._lacks,
            context=self._context(model),
            slots=known.slots,
            counts=known.counts,
            version=known.version,
        )

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        if self._at_once(work.sampling):
            yield await self._answer(work)
            return
        reader = ChatReader(self._who, work.sampling, self._cut(work.sampling))
        stream = await self._stream(work)
        try:
            async for events in stream:
                if chunks := reader.feed(events):
                    yield chunks
                if reader.fault is not None:
                    raise reader.fault
                if reader.ended:
                    stream.leave()
                    return
                if reader.finished:
                    stream.hurry(LAST_SECONDS)
        except Broken:
            if not reader.finished:
                raise
        finally:
            stream.close()
        yield reader.end()

    async def count(self, model: str, prompt: Prompt) -> int:
        if not isinstance(prompt, ChatPrompt) or not self.counting_path:
            raise EngineFailed(f"{self._who} cannot count this.")
        body: Json = {"model": model, "messages": prompt.messages}
        if prompt.tools:
            body["tools"] = prompt.tools
        if prompt.template_kwargs:
            body["chat_template_kwargs"] = prompt.template_kwargs
        encoded, context = msgspec.json.encode(body), self._context(model)
        if context and (least := len(encoded) // MOST_TOKEN_BYTES) > context and not _has_parts(prompt):
            return least  # not exactly, but too many: megabytes need not be tokenised to know that
        try:
            said = await self._asking.post(self._root + self.counting_path, encoded, wire.COUNTED)
        except Refused as refused:
            raise explained(refused, self._who, model) from None
        return said.count or said.input_tokens or 0

    # What subclasses say otherwise.

    async def probe(self) -> Probe:
        """Version, models, and whether tokens are counted: whatever can be asked without loading anything."""
        cards = await self._cards()
        counts = bool(cards) and await self._counts(cards[0].id)
        return Probe(version=await self._version(), models=_models(cards), contexts=_contexts(cards), counts=counts)

    def _prefix(self, path: str) -> str:
        """What stands before the engine's paths; whoever gives the path of its API means what is above it."""
        return path.removesuffix(self.api)

    def _at_once(self, sampling: Sampling) -> bool:
        """Whether the answer can only be had in one piece."""
        return sampling.n > 1 or (sampling.best_of or 1) > 1

    # The way to the engine.

    def _context(self, model: str) -> int | None:
        return None if self._watch.known is None else self._watch.known.contexts.get(model)

    @property
    def _chat(self) -> str:
        return f"{self._root}{self.api}/chat/completions"

    async def _stream(self, work: Work) -> EventStream[wire.Completion]:
        try:
            return await self._client.stream(self._chat, self._body.make(work, stream=True), wire.COMPLETION)
        except Refused as refused:
            raise explained(refused, self._who, work.model) from None
        except (Lost, Unavailable):
            self._watch.suspect()
            raise

    async def _answer(self, work: Work) -> list[Chunk]:
        try:
            body = self._body.make(work, stream=False)
            said = await self._client.post(self._chat, body, wire.COMPLETION)
        except Refused as refused:
            raise explained(refused, self._who, work.model) from None
        except (Lost, Unavailable):
            self._watch.suspect()
            raise
        return answers(self._who, said, work.sampling)

    def _cut(self, sampling: Sampling) -> StopCut | None:
        if not self.includes_stop or not sampling.stop or sampling.include_stop_str_in_output:
            return None
        return StopCut(sampling.stop)

    async def _cards(self) -> list[wire.ModelCard]:
        """The models, by the names they are asked for; only those that the operator named, if any are named."""
        cards = {card.id: card for card in await self._listed()}
        wanted = self.settings.model or tuple(cards)
        return [cards.get(name) or wire.ModelCard(id=name) for name in wanted]

    async def _listed(self) -> list[wire.ModelCard]:
        try:
            return (await self._asking.get(f"{self._root}{self.api}/models", wire.MODELS)).data or []
        except Refused as refused:
            if refused.answered == 404 and self.settings.model:
                return []  # not everyone lists them
            raise

    async def _version(self) -> str | None:
        if not self.version_path:
            return None
        try:
            return (await self._asking.get(self._root + self.version_path, wire.VERSION)).version
        except EngineFailed:
            return None  # nothing depends on it

    async def _counts(self, model: str) -> bool:
        """Whether it does: older versions do not."""
        try:
            return bool(self.counting_path) and await self.count(model, ChatPrompt(_HELLO)) > 0
        except AntiphonError:
            return False


def _has_parts(prompt: ChatPrompt) -> bool:
    """Whether there is more than text in it, such as an image, whose bytes say nothing about its tokens."""
    return any(isinstance(message.get("content"), list) for message in prompt.messages)


def _models(cards: Sequence[wire.ModelCard]) -> tuple[Model, ...]:
    return tuple(Model(id=card.id, created=card.created or 0) for card in cards)


def _contexts(cards: Sequence[wire.ModelCard]) -> dict[str, int]:
    """vLLM and SGLang tell it beside the model's name, llama.cpp below it."""
    told = {card.id: card.max_model_len or (card.meta or {}).get("n_ctx") for card in cards}
    return {name: size for name, size in told.items() if isinstance(size, int) and size > 0}
