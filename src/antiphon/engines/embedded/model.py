"""One model file in a child process: its capabilities, its tokenization, and the requests in flight.

Rendered text becomes input of /tokenize: ids of control tokens where the template put them, strings everywhere else.
The strings are tokenized without special tokens, so text of users, tools and files stays text, whatever it looks like.
Text on both sides of a segment border is tokenized together, as the model saw it in training.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, TypeVar

from antiphon.core.multi_match import MultiStringMatcher
from antiphon.core.prompt import (
    ChatPrompt,
    ChatTemplate,
    GenerationRequest,
    Json,
    ParserChoice,
    Prompt,
    Segment,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.base import Capabilities, EmbeddingInputs, EmbeddingResult, PassthroughReply, Task
from antiphon.engines.client import EventStream
from antiphon.engines.connection import ConnectionLost
from antiphon.engines.embedded import wire
from antiphon.engines.embedded.child import LaunchSpec
from antiphon.engines.embedded.process import ChildProcess, ChildSupervisor, RunningChild
from antiphon.engines.gguf import GgufHeader
from antiphon.errors import ContextTooLong, InvalidValue, StartupError, Unavailable, UnsupportedParameter

PromptPieces = list[str | int]


class SpecialTokens:
    def __init__(self, header: GgufHeader) -> None:
        self._ids = {**header.markup_tokens, **header.control_tokens}
        self._matcher = MultiStringMatcher(self._ids)
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)()")
        self._split = lru_cache(maxsize=256)(self._pattern.split)  # cached for the texts of the template, which repeat

    @property
    def texts(self) -> list[str]:
        return list(self._ids)

    def split_prompt(self, segments: tuple[Segment, ...]) -> PromptPieces:
        """Split a prompt into ids of special tokens (from control segments) and strings."""
        pieces: PromptPieces = []
        text: list[str] = []
        for segment in segments:
            if not segment.control:
                text.append(segment.text)
                continue
            for part in self._split(segment.text):
                if part in self._ids:
                    pieces += self._split_lookalikes("".join(text))
                    pieces.append(self._ids[part])
                    text.clear()
                else:
                    text.append(part)
        return pieces + list(self._split_lookalikes("".join(text)))

    def _split_lookalikes(self, text: str) -> Iterator[str]:
        """Split the text inside of everything that looks like a special token.

        llama.cpp parses user-defined tokens even with `parse_special` off, and treats some control tokens as
        user-defined, unless the string does not contain them completely.
        """
        start = 0
        for position in sorted(self._matcher.find_starts(text)):
            yield text[start : position + 1]
            start = position + 1
        if start < len(text):
            yield text[start:]


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

MAX_CACHED_PROMPTS = 8
IMAGE_TOKENS = 256  # estimate per image
EXIT_NOTICE_SECONDS = 2.0  # maximum delay between the exit of a process and its detection

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRANSCRIPT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


class LocalModel:
    """A model that generates text, as a subclass of its engine says how; `embedding.py` has the embedding models."""

    supported_fields: frozenset[str] = frozenset()
    unsupported_reasons: ClassVar[dict[str, str]] = {}

    def __init__(
        self, id: str, header: GgufHeader, launch: LaunchSpec, load_timeout: float, idle_timeout: float
    ) -> None:
        self.id = id
        self.created = int(Path(launch.model).stat().st_mtime)
        self.parser_choice = ParserChoice()
        self.default_sampling = header.sampling
        self.in_flight = 0
        self.last_used = 0.0
        self._header = header
        self._launch = launch
        self.supervisor = ChildSupervisor(id, launch, load_timeout, idle_timeout)
        self._special_tokens = SpecialTokens(header)
        self._slots = asyncio.Semaphore(launch.slots)
        self._prefix_tokens: list[int] | None = None  # tokens the model requires before every prompt: a BOS, or none
        self._prompt_cache: OrderedDict[TextPrompt, list[int]] = OrderedDict()

    @property
    def is_loaded(self) -> bool:
        return self.supervisor.is_started

    @property
    def child(self) -> ChildProcess | None:
        return self.supervisor.child

    def capabilities(self) -> Capabilities:
        header = self._header
        source = header.template or (
            CHATML_TEMPLATE if "<|im_start|>" in header.control_tokens else TRANSCRIPT_TEMPLATE
        )
        return Capabilities(
            level="text",
            supported_fields=self.supported_fields,
            unsupported_reasons=self.unsupported_reasons,
            other_levels=frozenset({"tokens"}),
            tasks=frozenset({"generate", "tokenize", "detokenize"}),
            context=self._launch.context,
            slots=self._launch.slots,
            can_count_tokens=True,
            template=ChatTemplate(source=source, bos=header.bos, eos=header.eos),
            default_sampling=self.default_sampling,
            architecture=header.architecture,
            parser_choice=self.parser_choice,
        )

    @property
    def is_down(self) -> bool:
        """True if the child process has run before and should run, but does not."""
        return self.is_loaded and self.supervisor.starts > 0 and self.child is None

    async def count_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens, or a lower bound without tokenizing if that exceeds the context.

        It is exact but for images, whose tokens only the engine counts.
        """
        minimum = self._min_token_count(prompt)
        if minimum > self._launch.context:
            return minimum
        images = len(prompt.images) if isinstance(prompt, TextPrompt) else 0
        return len(await self.tokenize(prompt)) + IMAGE_TOKENS * images

    @asynccontextmanager
    async def open_completion(
        self, request: GenerationRequest
    ) -> AsyncIterator[tuple[Sequence[int], EventStream[wire.LlamaCppEvent]]]:
        """Start a completion; yields the prompt tokens and the event stream. The context occupies a slot."""
        if self._min_token_count(request.prompt) > self._launch.context:
            raise ContextTooLong(f"The input has more than {self._launch.context} tokens.", param="input")
        sampling = request.sampling
        self.check_token_ids(map(_parse_token_id, sampling.logit_bias or ()), "logit_bias")
        self.check_token_ids(sampling.stop_token_ids, "stop_token_ids")
        async with self._slots:
            tokens = await self.tokenize(request.prompt)
            body = wire.encode(await self.build_completion(request, tokens))
            events = await self.call_child(
                lambda running: running.client.post_stream("/completion", body, wire.EVENT_DECODER)
            )
            try:
                yield tokens, events
            finally:
                events.close()

    async def build_completion(self, request: GenerationRequest, tokens: Sequence[int]) -> Json:
        """Build the body of the request to the child."""
        raise NotImplementedError

    def list_visible_tokens(self, request: GenerationRequest) -> Sequence[str]:
        """Return the control tokens to include in the text."""
        return request.visible_tokens if request.sampling.skip_special_tokens else self._special_tokens.texts

    async def embed(self, inputs: EmbeddingInputs, dimensions: int | None, truncate: int | None) -> EmbeddingResult:
        raise UnsupportedParameter(f"The model {self.id} generates text; it does not create embeddings.", param="model")

    async def pass_through(self, task: Task, body: bytes) -> PassthroughReply:
        raise UnsupportedParameter(f"The model {self.id} does not support the task {task}.", param="model")

    async def detokenize(self, tokens: Sequence[int]) -> str:
        self.check_token_ids(tokens, "tokens")
        body = wire.encode({"tokens": tokens})
        return (await self._post("/detokenize", body)).content

    def check_token_ids(self, tokens: Iterable[int], param: str) -> None:
        """Reject token ids outside of the vocabulary, which llama.cpp does not check reliably."""
        vocabulary_size = self._header.vocabulary_size
        for token in tokens:
            if not 0 <= token < vocabulary_size:
                raise InvalidValue(f"{token} is no token of this model, which has {vocabulary_size}.", param=param)

    async def call_child(self, call: Callable[[RunningChild], Awaitable[T]]) -> T:
        """Call the child, and once more if it had exited unnoticed: then it never received the request."""
        running = await self._wait_ready()
        try:
            return await call(running)
        except (ConnectionLost, Unavailable):
            if not await running.wait_lost(EXIT_NOTICE_SECONDS):
                raise
        return await call(await self._wait_ready())

    async def _post(self, path: str, body: bytes) -> wire.LlamaCppEvent:
        return await self.call_child(lambda running: running.client.post(path, body, wire.EVENT_DECODER))

    async def _wait_ready(self) -> RunningChild:
        try:
            return await self.supervisor.wait_ready()
        except StartupError as error:
            raise Unavailable(f"The model {self.id} is not available now: {error}", retry_after=5.0) from None

    async def tokenize(self, prompt: Prompt, special: bool = True) -> Sequence[int]:
        """Tokenize a prompt; without `special`, the tokens that the model requires before it are not added."""
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
            case TextPrompt() if not special:
                return await self.tokenize_content(
                    self._special_tokens.split_prompt(prompt.segments), add_special=False
                )
            case TextPrompt(images=(_, *_)):
                return await self.tokenize(TextPrompt(prompt.segments), special)
            case TextPrompt():
                ids = self._prompt_cache.get(prompt) or await self._tokenize_prompt(prompt)
                cache_put(self._prompt_cache, prompt, ids, MAX_CACHED_PROMPTS)
                return ids
            case ChatPrompt():
                raise TypeError("embedded engines take rendered prompts, not chat messages")

    def _min_token_count(self, prompt: Prompt) -> int:
        """Return a lower bound of the number of tokens, from the bytes and the longest token of the vocabulary."""
        if not isinstance(prompt, TextPrompt) or not self._header.max_token_bytes:
            return 0
        return sum([len(segment.text.encode()) for segment in prompt.segments]) // self._header.max_token_bytes

    async def _tokenize_prompt(self, prompt: TextPrompt) -> list[int]:
        if self._prefix_tokens is None:
            added = await self.tokenize_content("", add_special=True)
            self._prefix_tokens = [id for id in added[:1] if id == self._header.bos_id]
        tokens = await self.tokenize_content(self._special_tokens.split_prompt(prompt.segments), add_special=False)
        return tokens if tokens[:1] == self._prefix_tokens else self._prefix_tokens + tokens

    async def tokenize_content(self, content: str | list[str | int], *, add_special: bool) -> list[int]:
        body = wire.encode({"content": content, "add_special": add_special, "parse_special": False})
        return (await self._post("/tokenize", body)).tokens


def _parse_token_id(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise InvalidValue(f"{token[:40]!r} is not a token id.", param="logit_bias") from None


def cache_put(cache: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > limit:
        cache.popitem(last=False)
