"""What all engines over HTTP share: prompts out, chunks in, and a watch over who is there.

An engine's answer is untrusted: whatever it sends, what comes of it is an answer that ended well or a typed error.
Closing the iterator of `generate` closes the connection, which is how these engines learn that nobody listens.

The rest of an answer, read and handed on in the callback that brought it. Where it stops, its reader says why.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Chunk, Json, Reads, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities, Flow, GeneratesOnly, Level, Model, Take
from antiphon.engines.client import UNREADABLE, Client, Deadlines, EventStream, Refused
from antiphon.engines.connection import Address, Broken, Lost
from antiphon.engines.http.body import ChatBody, RawBody, Words
from antiphon.engines.http.endpoints import ChatWay, Reader, TextWay, Way
from antiphon.engines.http.engine_url import place
from antiphon.engines.http.error_mapping import explained
from antiphon.engines.http.fields import column, honoured, lacking, raw_column
from antiphon.engines.http.health_monitor import Abilities, Probe, Watch
from antiphon.engines.http.probe_client import Asking
from antiphon.engines.http.readers import wire
from antiphon.engines.http.tasks import Deeds
from antiphon.errors import (
    AntiphonError,
    ContextTooLong,
    EngineFailed,
    InvalidValue,
    StartupError,
    Unavailable,
    UnsupportedParameter,
)

LAST_SECONDS = 5.0  # between the end of an answer and its usage


class AnswerFlow(Flow):
    def __init__(self, stream: EventStream[Any], reader: Reader) -> None:
        self._stream = stream
        self._reader = reader

    async def pour(self, take: Take) -> None:
        stream, reader = self._stream, self._reader

        def taken(events: list[Any]) -> Awaitable[None] | None:
            try:
                chunks = reader.feed(events)
            except EngineFailed as error:
                chunks, reader.fault = [], error
            if reader.ended or reader.fault is not None:
                stream.halt()
            elif reader.finished:
                stream.hurry(LAST_SECONDS)
            return take(chunks) if chunks else None

        await stream.pour(taken)


CONNECTIONS_KEPT = 64
MAX_ANSWER_BYTES = 32 * 1024 * 1024  # that comes in one piece: text is never so much
PROBE = Deadlines(connect=5.0, first=10.0, idle=10.0)
_UNKNOWN = Probe()
THINK = "<think>\n"  # what a prompt that ends in a thought has taken from the answer


class HttpSettings(Struct, frozen=True, kw_only=True):
    engine: str  # the URL
    engine_key: str | None = None
    engine_ca: Path | None = None
    engine_level: Literal["chat", "tokens"] = "chat"
    allow_control_strings: bool = False
    model: tuple[str, ...] = ()  # serve these alone; none: whatever it says it has
    first_token_timeout: float = 600.0
    idle_timeout: float = 120.0
    reads: Reads = Reads()
    run_timeout: float = 3600.0

    def __repr__(self) -> str:
        """Without the key."""
        return f"HttpSettings(engine={self.engine!r}, model={self.model!r})"


class HttpEngine(Deeds, GeneratesOnly):
    """A subclass says how an engine is found and asked about itself; the table says what it calls things."""

    name: ClassVar[str]
    port: ClassVar[int]
    api: ClassVar[str] = "/v1"
    version_path: ClassVar[str] = ""  # asked for its version
    fixed: ClassVar[Json] = {}  # goes into the body of every stream
    includes_stop: ClassVar[bool] = False  # it sends the stop string along while streaming
    goes_on: ClassVar[bool] = False  # with a last message of the assistant's, in place of beginning another
    tells_all: ClassVar[bool] = False  # what it says beside the answer is under names of its own
    levels: ClassVar[frozenset[Level]] = frozenset({"chat"})
    takes: ClassVar[frozenset[Level]] = frozenset()  # raw prompts
    gullible: ClassVar[bool] = True  # what looks like a control token in a chat becomes one

    def __init__(self, settings: HttpSettings, address: Address | None = None) -> None:
        """`address` leads elsewhere than the URL, if it is given."""
        self.settings = settings
        found = place(settings.engine, self.port, settings.engine_ca)
        address = address or found.address
        self._by_tokens = settings.engine_level == "tokens"
        self._check()
        self._root = self._prefix(found.path)
        self._who = f"The {self.name} engine"
        deadlines = Deadlines(first=settings.first_token_timeout, idle=settings.idle_timeout)
        key = settings.engine_key
        self._client = Client(address, self._who, deadlines, CONNECTIONS_KEPT, found.host, key)
        self._quick = Client(address, self._who, PROBE, CONNECTIONS_KEPT, found.host, key)
        self._asking = Asking(self._quick, self._root)
        self._watch = Watch(self._who, found.shown, self.probe)
        self._told: Probe | None = None
        self._listed: Probe | None = None  # what the names below are from
        self._names: frozenset[str] = frozenset()
        self._able: dict[str, Capabilities] = {}
        self._columns = column(self.name), raw_column(self.name)
        chats, raw = (Words(self.name, cells) for cells in self._columns)
        self._chat_body = ChatBody(chats, self.fixed, goes_on=self.goes_on)
        self._chat: Way = ChatWay(
            self._who,
            f"{self._root}{self.api}/chat/completions",
            self._chat_body,
            includes_stop=self.includes_stop,
            tells_all=self.tells_all,
        )
        self._raw = self._raw_way(raw)

    def _check(self) -> None:
        """StartupError for settings that this engine cannot follow."""
        settings = self.settings
        if "=" in "".join(settings.model):
            raise StartupError(f"The {self.name} engine has models by the names that it knows; ID=FILE is for files.")
        if settings.engine_level not in self.levels:
            raise StartupError(f"The {self.name} engine is asked by chats only: leave out the level `tokens`.")
        if settings.reads.harmony and not self._by_tokens:
            way = "add --engine-level tokens" if "tokens" in self.levels else f"the {self.name} engine tells none"
            raise StartupError(f"--harmony reads and writes the ids of tokens: {way}.")

    async def open(self) -> None:
        await self._watch.start()

    async def close(self) -> None:
        await self._watch.stop()
        self._client.close()
        self._quick.close()

    def models(self) -> Sequence[Model]:
        known = self._watch.known
        return () if known is None else known.models

    def serves(self, model: str) -> bool:
        if (known := self._watch.known) is not self._listed:
            self._listed, self._names = known, frozenset(one.id for one in self.models())
        return model in self._names

    def healthy(self) -> bool:
        return self._watch.well

    async def capabilities(self, model: str) -> Capabilities:
        """Made once for each time that it told of itself."""
        known = self._watch.known or _UNKNOWN
        if known is not self._told:
            self._told, self._able = known, {}
        if (able := self._able.get(model)) is None:
            able = self._describe(model, known)
            able = self._able[model] = able if "generate" in able.does else _mute(able, self.embedding_fields)
        return able

    def _describe(self, model: str, known: Probe) -> Capabilities:
        found, cells = known.abilities, self._columns[self._by_tokens]
        raw, lacks = found.takes or self.takes, dict(found.lacks)
        if self._by_tokens:
            lacks.pop("tools", None)  # the calls are ours to read
        return Capabilities(
            prompt="tokens" if self._by_tokens else "chat",
            honours=(honoured(cells) | self.embedding_fields) - lacks.keys(),
            lacks=lacking(cells) | lacks,
            takes=raw | {"chat"} if self._by_tokens else raw,
            does=found.does.get(model, frozenset({"generate"})),
            context=self._context(model),
            slots=known.slots,
            counts=found.counts,
            knows_tools=found.knows_tools,
            gullible=self.gullible and not self.settings.allow_control_strings,
            architecture=found.architecture,
            wording=found.wording,
            wholes=self._raw.wholes if self._by_tokens else self._chat.wholes,
            version=known.version,
            reads=self.settings.reads,
            parsers=found.parsers,
            standing=self._watch.standing,
        )

    def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        return self._lists(work)

    async def answer(self, work: Work) -> list[Chunk]:
        """Who streams all the same is heard out."""
        client, way, thinks = self._client, self._chat, False
        if self._by_tokens or type(work.prompt) is not ChatPrompt:
            way, (work, thinks) = self._raw, await self._rendered(work)
        request = client.request(way.path, way.body(work, stream=False))
        try:
            said = await client.ask(request, MAX_ANSWER_BYTES, self._hopes)
            if isinstance(said, bytes):
                chunks = way.answers(self._who, said, work.sampling)
                return [Chunk(text=THINK), *chunks] if thinks else chunks
        except AntiphonError as error:
            raise self._explained(error, work.model) from None
        except UNREADABLE as error:
            raise client.unreadable(error) from None
        return await self._heard(_Begun(way, work, thinks, EventStream(client, said, way.decoder(work))))

    async def _heard(self, begun: "_Begun") -> list[Chunk]:
        """All of a stream, from who should have answered in one piece."""
        heard: list[Chunk] = []
        most = self.settings.first_token_timeout + self.settings.idle_timeout  # for who talks and says nothing
        try:
            async with asyncio.timeout(most) as silence, aclosing(self._lists(begun.work, begun)) as lists:
                async for chunks in lists:
                    heard += chunks
                    silence.reschedule(asyncio.get_running_loop().time() + most)
        except TimeoutError:
            raise EngineFailed(f"{self._who} was silent for too long.") from None
        return heard

    async def _lists(self, work: Work, begun: "_Begun | None" = None) -> AsyncGenerator[list[Chunk], None]:
        if begun is None and self._at_once(work):
            yield await self.answer(work)
            return
        begun = begun or await self._begin(work)
        stream, reader, thinks = begun.stream, begun.way.reader(begun.work), begun.thinks
        flow: Flow | None = AnswerFlow(stream, reader)
        try:
            async for events in stream:
                if chunks := reader.feed(events):
                    if thinks:
                        chunks.insert(0, Chunk(text=THINK))
                        thinks = False
                    yield chunks
                    if flow is not None and not reader.finished:
                        yield flow
                        flow = None
                if reader.fault is not None:
                    raise self._hushed(reader.fault)
                if reader.ended:
                    if not reader.cut:
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

    # What subclasses say otherwise.

    async def probe(self) -> Probe:
        """Version and models; and what is learnt once, whenever it may have become another."""
        cards = await self._asking.cards(self.api, self.settings.model)
        version, models = await self._asking.version(self.version_path), _models(cards)
        known = self._watch.known
        if known is None or not self._watch.well or (known.version, known.models) != (version, models):
            abilities = await self.learn(cards)
        else:
            abilities = known.abilities
        return Probe(version=version, models=models, contexts=_contexts(cards), abilities=abilities)

    async def learn(self, cards: Sequence[wire.ModelCard]) -> Abilities:
        """Whatever can be asked without making it work."""
        return Abilities(counts=bool(cards) and await self._can_count(cards[0].id))

    def _prefix(self, path: str) -> str:
        """What stands before the engine's paths; whoever gives the path of its API means what is above it."""
        return path.removesuffix(self.api)

    def _raw_way(self, words: Words) -> Way:
        fixed = {"stream_options": {"include_usage": True}, **({"return_token_ids": True} if self._by_tokens else {})}
        path = f"{self._root}{self.api}/completions"
        return TextWay(self._who, path, RawBody(words, fixed), includes_stop=self.includes_stop)

    def _at_once(self, work: Work) -> bool:
        """Whether the answer can only be had in one piece."""
        sampling = work.sampling
        return (
            (sampling.best_of or 1) > 1 or sampling.prompt_logprobs is not None or work.kv_transfer_params is not None
        )

    # The way to the engine.

    def _context(self, model: str) -> int | None:
        return None if self._watch.known is None else self._watch.known.contexts.get(model)

    def _check_tokens(self, tokens: Sequence[int], param: str) -> None:
        most = None if self._watch.known is None else self._watch.known.abilities.vocabulary
        if most is not None and (wrong := next((token for token in tokens if not 0 <= token < most), None)) is not None:
            raise InvalidValue(f"The token id {wrong} is not in the vocabulary, which has {most}.", param=param)

    async def _rendered(self, work: Work) -> tuple[Work, bool]:
        """With the ids of its tokens if it was a chat; and whether the prompt ends within a thought."""
        prompt = work.prompt
        thinks = False
        if isinstance(prompt, TokenPrompt):
            self._check_tokens(prompt.tokens, "prompt")
        if isinstance(prompt, ChatPrompt):
            prompt = TokenPrompt(await self._chat_tokens(work.model, prompt, work.effort))
            thinks = self._opens_thought(prompt.tokens)
        elif isinstance(prompt, TokenPrompt) and "tokens" not in (await self.capabilities(work.model)).takes:
            if not self._by_tokens:
                raise UnsupportedParameter(f"The {self.name} engine takes texts, not token ids.", param="prompt")
        elif isinstance(prompt, TextPrompt) and (self.splits_text or work.sampling.max_tokens is None):
            prompt = await self._as_tokens(work.model, prompt)
        return self._fitted(replace(work, prompt=prompt)), thinks

    def _fitted(self, work: Work) -> Work:
        """Where a raw prompt is completed, no word about the length means sixteen tokens, or as many."""
        context, prompt = self._context(work.model), work.prompt
        if context is None or not isinstance(prompt, TokenPrompt):
            return work
        room = context - len(prompt.tokens)
        if room < 1:
            raise ContextTooLong(
                f"The input has {len(prompt.tokens)} tokens, and this model takes {context} with the answer.",
                param="input",
            )
        most = room if work.sampling.max_tokens is None else min(work.sampling.max_tokens, room)
        return replace(work, sampling=replace(work.sampling, max_tokens=most))

    def _opens_thought(self, tokens: Sequence[int]) -> bool:
        known = self._watch.known
        openers = () if known is None else known.abilities.openers
        return any(tuple(tokens[-len(opener) :]) == opener for opener in openers)

    async def _begin(self, work: Work) -> "_Begun":
        way, thinks = self._chat, False
        if self._by_tokens or type(work.prompt) is not ChatPrompt:
            way, (work, thinks) = self._raw, await self._rendered(work)
        request = self._client.request(way.path, way.body(work, stream=True))
        try:
            return _Begun(way, work, thinks, await self._client.listen(request, way.decoder(work)))
        except AntiphonError as error:
            raise self._explained(error, work.model) from None

    def _explained(self, error: AntiphonError, model: str) -> AntiphonError:
        """What went wrong before anything was told. Who could not be reached is looked at."""
        if isinstance(error, Refused):
            return explained(error, self._who, model)
        if isinstance(error, Lost | Unavailable):
            self._watch.suspect()
        return self._hushed(error)

    def _hopes(self, since: float) -> bool:
        """An answer in one piece takes as long as it takes: it is waited for while the engine is well."""
        return self._watch.well and asyncio.get_running_loop().time() < since + self.settings.run_timeout

    def _hushed(self, error: AntiphonError) -> AntiphonError:
        """Engines are quoted, but not with the key."""
        error.message = self._client.hushed(error.message.encode("utf-8", "replace")).decode()
        error.args = (error.message,)
        return error


class _Begun(Struct, frozen=True):
    """A work as it was sent, and the stream of what the engine says to it."""

    way: Way
    work: Work
    thinks: bool  # the prompt ends within a thought
    stream: EventStream[Any]


def _mute(able: Capabilities, embedding_fields: frozenset[str]) -> Capabilities:
    """What shapes answers is of no use to a model that gives none."""
    honours = able.honours & embedding_fields if "embed" in able.does else frozenset[str]()
    return replace(able, honours=honours, lacks={}, takes=frozenset(), parsers={}, wholes=False)


def _models(cards: Sequence[wire.ModelCard]) -> tuple[Model, ...]:
    return tuple(Model(id=card.id, created=card.created or 0) for card in cards)


def _contexts(cards: Sequence[wire.ModelCard]) -> dict[str, int]:
    """vLLM and SGLang tell it beside the model's name, llama.cpp below it."""
    told = {card.id: card.max_model_len or (card.meta or {}).get("n_ctx") for card in cards}
    return {name: size for name, size in told.items() if isinstance(size, int) and size > 0}
