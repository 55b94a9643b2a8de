"""One GGUF file as a model: what it can do, its tokens, and the work that is under way with it."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, assert_never

from antiphon.core.prompt import ChatPrompt, Json, Prompt, Template, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities
from antiphon.engines.client import EventStream
from antiphon.engines.connection import Lost
from antiphon.engines.gguf import Header
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.process import Child
from antiphon.engines.llamacpp.prompt import Vocabulary
from antiphon.engines.llamacpp.supervisor import Patience, Running, Supervisor
from antiphon.errors import ContextTooLong, InvalidValue, StartupError, Unavailable

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

REMEMBERED_PROMPTS = 8
REMEMBERED_SCHEMAS = 256
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

# What no JSON begins with. If the model says it although a grammar should forbid it, there is no grammar.
FORBIDDEN = "Z"


class LocalModel:
    def __init__(self, id: str, header: Header, launch: Launch, patience: Patience) -> None:
        self.id = id
        self.created = int(Path(launch.model).stat().st_mtime)
        self.in_flight = 0
        self.last_used = 0.0
        self._header = header
        self._launch = launch
        self._supervisor = Supervisor(id, launch, patience)
        self._vocabulary = Vocabulary(header)
        self._slots = asyncio.Semaphore(launch.slots)
        self._begins_with: list[int] | None = None  # what the model wants before every prompt: a BOS, or nothing
        self._prompts: OrderedDict[TextPrompt, list[int]] = OrderedDict()
        self._schemas: OrderedDict[bytes, str] = OrderedDict()  # of each: why it cannot be used, or ""
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
            context=self._launch.context,
            slots=self._launch.slots,
            counts=True,
            template=Template(source=source, bos=header.bos, eos=header.eos),
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
    async def answering(self, work: Work) -> AsyncIterator[EventStream[wire.Event]]:
        """The engine's events; a slot is ours as long as they are read."""
        if self._least(work.prompt) > self._launch.context:
            raise ContextTooLong(f"The input has more than {self._launch.context} tokens.", param="input")
        async with self._slots:
            tokens = await self.tokens(work.prompt)
            schema = None if work.constraint is None else wire.guided(work.constraint)
            if schema is not None:
                await self._try(schema)
            body = wire.encode(wire.completion(tokens, work.sampling, schema, self._vocabulary.special))
            events = await self._ask(lambda running: running.client.stream("/completion", body, wire.EVENT))
            try:
                yield events
            finally:
                events.close()

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

    async def tokens(self, prompt: Prompt) -> Sequence[int]:
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
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

    async def _try(self, schema: Json) -> None:
        """llama.cpp generates without a constraint if it cannot make one of a schema, and only its log tells."""
        key = hashlib.sha256(wire.encode(schema)).digest()
        async with self._trying:
            fault = self._schemas[key] if key in self._schemas else await self._fault(schema)
            _remember(self._schemas, key, fault, REMEMBERED_SCHEMAS)
        if fault:
            raise InvalidValue(fault, param="text.format.schema")

    async def _fault(self, schema: Json) -> str:
        prompt = await self._tokenise(FORBIDDEN, add_special=False)
        body = wire.encode(wire.trial(prompt, schema, FORBIDDEN))
        return await self._ask(lambda running: _trial(running, body))


async def _trial(running: Running, body: bytes) -> str:
    """Why the schema in this request is not enforced; nothing if it is."""
    mark = running.child.mark()
    said = await running.client.post("/completion", body, wire.EVENT)
    if not said.content.strip().startswith(FORBIDDEN):
        return ""
    logged = await running.child.logged("llg error", mark, LOG_LAG_SECONDS)
    _, _, reason = logged.partition("failed to compile JSON schema: ")
    return f"This schema cannot be enforced: {reason or 'the engine does not know how'}."


def _remember(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > most:
        memory.popitem(last=False)
