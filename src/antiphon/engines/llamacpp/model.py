"""One GGUF file as a model: its capabilities, its tokenization, and the requests in flight.

Rendered text becomes input of /tokenize: ids of control tokens where the template put them, strings everywhere else.
The strings are tokenized without special tokens, so text of users, tools and files stays text, whatever it looks like.
Text on both sides of a segment border is tokenized together, as the model saw it in training.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from antiphon.core.multi_match import MultiStringMatcher
from antiphon.core.prompt import (
    ChatPrompt,
    ChatTemplate,
    GenerationRequest,
    ParserChoice,
    Prompt,
    Sampling,
    Segment,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.base import Capabilities, EmbeddingInputs, EmbeddingResult
from antiphon.engines.client import EventStream
from antiphon.engines.connection import ConnectionLost
from antiphon.engines.gguf import GgufHeader
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.child import LaunchSpec
from antiphon.engines.llamacpp.process import ChildProcess, ChildSupervisor, RunningChild
from antiphon.engines.llamacpp.wire import LlamaCppConstraint, to_llamacpp_constraint
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
MAX_CACHED_CONSTRAINTS = 256
LOG_LAG_SECONDS = 0.25
EXIT_NOTICE_SECONDS = 2.0  # maximum delay between the exit of a process and its detection

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRANSCRIPT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

# Text that no JSON begins with, for models without control tokens. If the model emits a token that the grammar forbids,
# the grammar is not enforced.
FORBIDDEN_TEXT = "Z"


class LocalModel:
    """A model that generates text; `embedding.py` has the embedding models."""

    def __init__(
        self, id: str, header: GgufHeader, launch: LaunchSpec, load_timeout: float, idle_timeout: float
    ) -> None:
        self.id = id
        self.created = int(Path(launch.model).stat().st_mtime)
        self.parser_choice = ParserChoice()
        self.default_sampling = Sampling()
        self.in_flight = 0
        self.last_used = 0.0
        self._header = header
        self._launch = launch
        self.supervisor = ChildSupervisor(id, launch, load_timeout, idle_timeout)
        self._special_tokens = SpecialTokens(header)
        self._slots = asyncio.Semaphore(launch.slots)
        self._prefix_tokens: list[int] | None = None  # tokens the model requires before every prompt: a BOS, or none
        self._prompt_cache: OrderedDict[TextPrompt, list[int]] = OrderedDict()
        # digest → why the constraint cannot be enforced, or ""
        self._constraint_errors: OrderedDict[bytes, str] = OrderedDict()
        self._constraint_lock = asyncio.Lock()

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
            supported_fields=wire.SUPPORTED_FIELDS,
            unsupported_reasons=wire.UNSUPPORTED_REASONS,
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
        """Return the exact number of tokens, or a lower bound without tokenizing if that exceeds the context."""
        minimum = self._min_token_count(prompt)
        return minimum if minimum > self._launch.context else len(await self.tokenize(prompt))

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
        constraint = to_llamacpp_constraint(request.constraint, bounded=True)
        async with self._slots:
            tokens = await self.tokenize(request.prompt)
            if constraint.fails_silently:
                await self._check_constraint(constraint)
            visible_tokens = request.visible_tokens if sampling.skip_special_tokens else self._special_tokens.texts
            completion = wire.build_completion(
                tokens, sampling, constraint, visible_tokens, use_cache=request.salt is None
            )
            body = wire.encode(completion)
            events = await self._call_child(
                lambda running: running.client.post_stream("/completion", body, wire.EVENT_DECODER)
            )
            try:
                yield tokens, events
            finally:
                events.close()

    async def embed(self, inputs: EmbeddingInputs, dimensions: int | None, truncate: int | None) -> EmbeddingResult:
        raise UnsupportedParameter(f"The model {self.id} generates text; it does not create embeddings.", param="model")

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

    async def _call_child(self, call: Callable[[RunningChild], Awaitable[T]]) -> T:
        """Call the child, and once more if it had exited unnoticed: then it never received the request."""
        running = await self._wait_ready()
        try:
            return await call(running)
        except (ConnectionLost, Unavailable):
            if not await running.wait_lost(EXIT_NOTICE_SECONDS):
                raise
        return await call(await self._wait_ready())

    async def _post(self, path: str, body: bytes) -> wire.LlamaCppEvent:
        return await self._call_child(lambda running: running.client.post(path, body, wire.EVENT_DECODER))

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
                return await self._tokenize_content(
                    self._special_tokens.split_prompt(prompt.segments), add_special=False
                )
            case TextPrompt():
                ids = self._prompt_cache.get(prompt) or await self._tokenize_prompt(prompt)
                _cache_put(self._prompt_cache, prompt, ids, MAX_CACHED_PROMPTS)
                return ids
            case ChatPrompt():
                raise TypeError("llama.cpp takes rendered prompts, not chat messages")

    def _min_token_count(self, prompt: Prompt) -> int:
        """Return a lower bound of the number of tokens, from the bytes and the longest token of the vocabulary."""
        if not isinstance(prompt, TextPrompt) or not self._header.max_token_bytes:
            return 0
        return sum([len(segment.text.encode()) for segment in prompt.segments]) // self._header.max_token_bytes

    async def _tokenize_prompt(self, prompt: TextPrompt) -> list[int]:
        if self._prefix_tokens is None:
            added = await self._tokenize_content("", add_special=True)
            self._prefix_tokens = [id for id in added[:1] if id == self._header.bos_id]
        tokens = await self._tokenize_content(self._special_tokens.split_prompt(prompt.segments), add_special=False)
        return tokens if tokens[:1] == self._prefix_tokens else self._prefix_tokens + tokens

    async def _tokenize_content(self, content: str | list[str | int], *, add_special: bool) -> list[int]:
        body = wire.encode({"content": content, "add_special": add_special, "parse_special": False})
        return (await self._post("/tokenize", body)).tokens

    async def _check_constraint(self, constraint: LlamaCppConstraint) -> None:
        """Raise `InvalidValue` if the constraint cannot be enforced.

        llama.cpp generates without a constraint if llguidance cannot compile it, and reports that only in its log.
        """
        key = hashlib.sha256(wire.encode(constraint)).digest()
        async with self._constraint_lock:
            reason = self._constraint_errors.get(key)
            if reason is None:
                reason = await self._probe_constraint(constraint)
            _cache_put(self._constraint_errors, key, reason, MAX_CACHED_CONSTRAINTS)
        if reason:
            raise InvalidValue(reason, param="text.format.schema" if constraint.schema is not None else "text.format")

    async def _probe_constraint(self, constraint: LlamaCppConstraint) -> str:
        """Return why the constraint cannot be enforced, or ""."""
        prompt = await self._tokenize_content(FORBIDDEN_TEXT, add_special=False)
        control_tokens = self._header.control_tokens.values() if constraint.schema is None else ()
        forbidden = next(iter(control_tokens), FORBIDDEN_TEXT)
        body = wire.encode(wire.build_probe(prompt, constraint, forbidden))
        return await self._call_child(lambda running: _run_probe(running, body, constraint, forbidden))


async def _run_probe(running: RunningChild, body: bytes, constraint: LlamaCppConstraint, forbidden: int | str) -> str:
    """Return why the constraint of this probe request is not enforced, or "" if it is."""
    position = running.child.line_count
    reply = await running.client.post("/completion", body, wire.EVENT_DECODER)
    if not (reply.tokens[:1] == [forbidden] or reply.content.strip().startswith(str(forbidden))):
        return ""
    line = await running.child.find_in_log("llg error", position, LOG_LAG_SECONDS)
    if constraint.schema is not None:
        _, _, reason = line.partition("failed to compile JSON schema: ")
        return f"This schema cannot be enforced: {reason or 'the engine gave no reason'}."
    # no such log line: the grammar itself begins with the forbidden token
    _, failed, reason = line.partition("llg error: ")
    return f"This grammar cannot be enforced: {reason}." if failed else ""


def _parse_token_id(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise InvalidValue(f"{token[:40]!r} is not a token id.", param="logit_bias") from None


def _cache_put(cache: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > limit:
        cache.popitem(last=False)
