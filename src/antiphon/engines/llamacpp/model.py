"""One GGUF file as a model: what it can do, its tokens, and the work that is under way with it.

Rendered text → what /tokenize takes: ids of control tokens where the template put them, strings everywhere else.

The strings are tokenised without special tokens, so that what users, tools and files wrote stays text, whatever it
looks like. Text on both sides of a segment's border is tokenised together, as the model saw it in training.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, assert_never

from antiphon.core.multi_match import Occurrences
from antiphon.core.prompt import ChatPrompt, Prompt, Reads, Sampling, Segment, Template, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities, Embedded
from antiphon.engines.client import EventStream
from antiphon.engines.connection import Lost
from antiphon.engines.gguf import Header
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.constraints import Guide, guided
from antiphon.engines.llamacpp.process import Child
from antiphon.engines.llamacpp.supervisor import Patience, Running, Supervisor
from antiphon.errors import ContextTooLong, InvalidValue, StartupError, Unavailable, UnsupportedParameter

Pieces = list[str | int]


class Vocabulary:
    """The special tokens of a model."""

    def __init__(self, header: Header) -> None:
        self._special = {**header.marks, **header.control}
        self._seen = Occurrences(self._special)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)()")
        self._split = lru_cache(maxsize=256)(self._pattern.split)  # of a template's own words, which repeat

    @property
    def special(self) -> list[str]:
        return list(self._special)

    def pieces(self, segments: tuple[Segment, ...]) -> Pieces:
        pieces: Pieces = []
        text: list[str] = []
        for segment in segments:
            if not segment.control:
                text.append(segment.text)
                continue
            for part in self._split(segment.text):
                if part in self._special:
                    pieces += self._plain("".join(text))
                    pieces.append(self._special[part])
                    text.clear()
                else:
                    text.append(part)
        return pieces + list(self._plain("".join(text)))

    def _plain(self, text: str) -> Iterator[str]:
        """The text, cut within whatever looks special in it: llama.cpp makes tokens of marks even where it makes none
        of control tokens, and takes some control tokens for marks, unless it never sees them whole."""
        begun = 0
        for place in sorted(self._seen.places(text)):
            yield text[begun : place + 1]
            begun = place + 1
        if begun < len(text):
            yield text[begun:]


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

REMEMBERED_PROMPTS = 8
REMEMBERED_GUIDES = 256
LOG_LAG_SECONDS = 0.25
NOTICE_SECONDS = 2.0  # between a process's death and our knowledge of it

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRANSCRIPT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

# What no JSON begins with, for models that have no control token. If the model says what a grammar should forbid, there
# is no grammar.
FORBIDDEN = "Z"


class LocalModel:
    """One that generates; embedding.py has the others."""

    def __init__(self, id: str, header: Header, launch: Launch, patience: Patience) -> None:
        self.id = id
        self.created = int(Path(launch.model).stat().st_mtime)
        self.reads = Reads()
        self.in_flight = 0
        self.last_used = 0.0
        self._header = header
        self._launch = launch
        self._supervisor = Supervisor(id, launch, patience)
        self._vocabulary = Vocabulary(header)
        self._slots = asyncio.Semaphore(launch.slots)
        self._begins_with: list[int] | None = None  # what the model wants before every prompt: a BOS, or nothing
        self._prompts: OrderedDict[TextPrompt, list[int]] = OrderedDict()
        self._guides: OrderedDict[bytes, str] = OrderedDict()  # of each: why it cannot be used, or ""
        self._trying = asyncio.Lock()

    @property
    def loaded(self) -> bool:
        return self._supervisor.wanted

    @property
    def child(self) -> Child | None:
        """While it lives."""
        return self._supervisor.child

    def capabilities(self) -> Capabilities:
        header = self._header
        source = header.template or (CHATML if "<|im_start|>" in header.control else TRANSCRIPT)
        return Capabilities(
            prompt="text",
            honours=wire.HONOURS,
            lacks=wire.LACKS,
            takes=frozenset({"tokens"}),
            does=frozenset({"generate", "tokenize", "detokenize"}),
            context=self._launch.context,
            slots=self._launch.slots,
            counts=True,
            template=Template(source=source, bos=header.bos, eos=header.eos),
            architecture=header.architecture,
            reads=self.reads,
        )

    @property
    def down(self) -> bool:
        """It should run, and did, but does not."""
        return self.loaded and self._supervisor.starts > 0 and self.child is None

    def begin_to_load(self) -> None:
        self._supervisor.start()

    async def load(self) -> None:
        await self._supervisor.ready()

    async def unload(self) -> None:
        await self._supervisor.stop()

    async def count(self, prompt: Prompt) -> int:
        """Exactly, if it can fit at all; else at least that many, without megabytes being tokenised for nothing."""
        least = self._least(prompt)
        return least if least > self._launch.context else len(await self.tokens(prompt))

    @asynccontextmanager
    async def answering(self, work: Work) -> AsyncIterator[tuple[Sequence[int], EventStream[wire.Event]]]:
        """The tokens of the prompt and the engine's events; a slot is ours as long as they are read."""
        if self._least(work.prompt) > self._launch.context:
            raise ContextTooLong(f"The input has more than {self._launch.context} tokens.", param="input")
        self._check_tokens(work.sampling)
        guide = guided(work.constraint)
        async with self._slots:
            tokens = await self.tokens(work.prompt)
            if guide.silent:
                await self._try(guide)
            shown = work.shown if work.sampling.skip_special_tokens else self._vocabulary.special
            body = wire.encode(wire.completion(tokens, work.sampling, guide, shown, cached=work.salt is None))
            events = await self._ask(lambda running: running.client.stream("/completion", body, wire.EVENT))
            try:
                yield tokens, events
            finally:
                events.close()

    async def embed(
        self, inputs: Sequence[str | Sequence[int]], dimensions: int | None, truncate: int | None
    ) -> Embedded:
        raise UnsupportedParameter(f"The model {self.id} generates text; it makes no embeddings.", param="model")

    async def detokenize(self, tokens: Sequence[int]) -> str:
        self.check_ids(tokens, "tokens")
        body = wire.encode({"tokens": tokens})
        return (await self._ask(lambda running: running.client.post("/detokenize", body, wire.TEXT))).content

    def check_ids(self, tokens: Iterable[int], param: str) -> None:
        """llama.cpp is not careful with numbers that are no tokens."""
        known = self._header.vocabulary
        for token in tokens:
            if not 0 <= token < known:
                raise InvalidValue(f"{token} is no token of this model, which has {known}.", param=param)

    def _check_tokens(self, sampling: Sampling) -> None:
        self.check_ids(map(_number, sampling.logit_bias or ()), "logit_bias")
        self.check_ids(sampling.stop_token_ids, "stop_token_ids")

    async def _ask(self, question: Callable[[Running], Awaitable[T]]) -> T:
        """Once more if the engine turns out to have died unnoticed: it had not heard the question."""
        running = await self._running()
        try:
            return await question(running)
        except (Lost, Unavailable):
            if not await running.gone(NOTICE_SECONDS):
                raise
        return await question(await self._running())

    async def _running(self) -> Running:
        try:
            return await self._supervisor.ready()
        except StartupError as error:
            raise Unavailable(f"The model {self.id} is not available now: {error}", retry_after=5.0) from None

    async def tokens(self, prompt: Prompt, special: bool = True) -> Sequence[int]:
        """Not `special`: without what the model wants before every prompt."""
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
            case TextPrompt() if not special:
                return await self._tokenise(self._vocabulary.pieces(prompt.segments), add_special=False)
            case TextPrompt():
                made = self._prompts.get(prompt) or await self._tokenised(prompt)
                _remember(self._prompts, prompt, made, REMEMBERED_PROMPTS)
                return made
            case ChatPrompt():
                raise TypeError("llama.cpp is given rendered prompts, not chats")
            case _:
                assert_never(prompt)

    def _least(self, prompt: Prompt) -> int:
        """Tokens that it cannot be without."""
        if not isinstance(prompt, TextPrompt) or not self._header.longest:
            return 0
        return sum([len(segment.text.encode()) for segment in prompt.segments]) // self._header.longest

    async def _tokenised(self, prompt: TextPrompt) -> list[int]:
        if self._begins_with is None:
            asked_for = await self._tokenise("", add_special=True)
            self._begins_with = [id for id in asked_for[:1] if id == self._header.bos_id]
        tokens = await self._tokenise(self._vocabulary.pieces(prompt.segments), add_special=False)
        return tokens if tokens[:1] == self._begins_with else self._begins_with + tokens

    async def _tokenise(self, content: str | list[str | int], *, add_special: bool) -> list[int]:
        body = wire.encode({"content": content, "add_special": add_special, "parse_special": False})
        return (await self._ask(lambda running: running.client.post("/tokenize", body, wire.TOKENS))).tokens

    async def _try(self, guide: Guide) -> None:
        """llama.cpp generates without a constraint if llguidance can make none, and only its log tells."""
        key = hashlib.sha256(wire.encode(guide)).digest()
        async with self._trying:
            fault = self._guides[key] if key in self._guides else await self._fault(guide)
            _remember(self._guides, key, fault, REMEMBERED_GUIDES)
        if fault:
            raise InvalidValue(fault, param="text.format.schema" if guide.schema is not None else "text.format")

    async def _fault(self, guide: Guide) -> str:
        prompt = await self._tokenise(FORBIDDEN, add_special=False)
        forbidden = FORBIDDEN if guide.schema is not None else next(iter(self._header.control.values()), FORBIDDEN)
        body = wire.encode(wire.trial(prompt, guide, forbidden))
        return await self._ask(lambda running: _trial(running, body, guide, forbidden))


async def _trial(running: Running, body: bytes, guide: Guide, forbidden: int | str) -> str:
    """Why the constraint in this request is not enforced; nothing if it is."""
    mark = running.child.mark()
    said = await running.client.post("/completion", body, wire.EVENT)
    if not (said.tokens[:1] == [forbidden] or said.content.strip().startswith(str(forbidden))):
        return ""
    logged = await running.child.logged("llg error", mark, LOG_LAG_SECONDS)
    if guide.schema is not None:
        _, _, reason = logged.partition("failed to compile JSON schema: ")
        return f"This schema cannot be enforced: {reason or 'the engine does not know how'}."
    _, failed, reason = logged.partition("llg error: ")  # none: the grammar begins with that very token
    return f"This grammar cannot be enforced: {reason}." if failed else ""


def _number(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise InvalidValue(f"{token[:40]!r} is not the number of a token.", param="logit_bias") from None


def _remember(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > most:
        memory.popitem(last=False)
