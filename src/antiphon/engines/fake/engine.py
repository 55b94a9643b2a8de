"""An engine without a model, for tests, demos and load: part of the distribution, deterministic, at every prompt level.

It repeats the last user text, calls tools, fills in schemas and emits reasoning (`answer.py`), unless the next reply is
scripted: by a test (`engine.says`) or in a script file (`script.py`). It accepts any model name.
"""

import asyncio
import time
from asyncio import sleep
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, GenerationRequest, ParserChoice, Prompt, TokenCounts
from antiphon.engines.base import Capabilities, Model, PromptLevel, Task
from antiphon.engines.fake.answer import AnswerChunks, compose_answer, split_answer
from antiphon.engines.fake.harmony import ARCHITECTURE, HarmonyReplyRenderer, split_harmony_answer
from antiphon.engines.fake.playback import (
    Action,
    AutomaticPlayback,
    Gate,
    Playback,
    ReplyRenderer,
    ScriptedPlayback,
    ScriptedReply,
    make_burst,
    make_fault,
)
from antiphon.engines.fake.prompt_reader import ParsedPrompt, PrefixCache
from antiphon.engines.fake.script import Script, load_script
from antiphon.engines.fake.tasks import FakeTasks
from antiphon.engines.fake.tokens import TEMPLATE, WIDTH, Level
from antiphon.errors import ContextTooLong, StartupError
from antiphon.protocol.schemas.grammars import has_lark

_MAX_SEEN = 4  # retained requests; each holds a complete prompt
_NO_EFFECT_FIELDS = {
    # Sampling fields that have no effect, because no output is random.
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "logit_bias",
}  # fmt: skip
_COMMON_FIELDS = _NO_EFFECT_FIELDS | {
    "max_output_tokens", "stop", "include_stop_str_in_output", "ignore_eos", "logprobs", "top_logprobs", "n",
    "text.format", "reasoning.effort", "chat_template_kwargs", "min_tokens", "dimensions", "truncate_prompt_tokens",
    *(["grammar.regex"] if has_lark() else []),
}  # fmt: skip
_CHAT_FIELDS = {
    "tools", "tool_choice", "parallel_tool_calls", "input_image", "input_file", "input_audio", "developer",
}  # fmt: skip
_TOKEN_ID_FIELDS = {"skip_special_tokens", "stop_token_ids", "return_token_ids"}  # only at levels whose tokens have ids
# The Harmony level does not cut its output: Antiphon itself ends it at a stop string.
_UNSUPPORTED_BY_HARMONY = {
    "stop", "include_stop_str_in_output", "ignore_eos", "min_tokens", "grammar.regex", "chat_template_kwargs",
}  # fmt: skip
_SUPPORTED_FIELDS: dict[Level, frozenset[str]] = {
    "chat": frozenset(_COMMON_FIELDS | _CHAT_FIELDS),
    "text": frozenset(_COMMON_FIELDS | {"skip_special_tokens"}),
    "tokens": frozenset(_COMMON_FIELDS | _TOKEN_ID_FIELDS),
    "harmony": frozenset((_COMMON_FIELDS | _TOKEN_ID_FIELDS) - _UNSUPPORTED_BY_HARMONY),
}
_UNSUPPORTED_REASONS = {"prompt_logprobs": "The fake engine computes no logprobs for prompts."}
_PROMPT_LEVELS: frozenset[PromptLevel] = frozenset({"chat", "text", "tokens"})


class FakeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the fake engine, from the configuration fields of these names or with the prefix `fake_`."""

    level: Level = "chat"
    script: Path | None = None
    tokens: int | None = None  # length in tokens of every unconstrained answer, to generate load
    rate: float | None = None  # tokens per second of each stream; None: as fast as they are consumed
    joined: int = 1  # tokens per list of chunks
    burst: int = 16  # lists between yields to other streams; 1: yield after every list
    delay: float = 0.0  # seconds before the first chunk
    context: int | None = 32_768
    at_once: int | None = None  # concurrent answers; not named `slots`, which is a setting of the embedded engine
    reads: ParserChoice = ParserChoice()


class FakeEngine(FakeTasks):
    """The fake engine.

    `running` counts the requests in flight, `seen` holds the latest requests, `cancelled` counts the requests that were
    closed before their end.
    """

    name = "fake"

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.settings = settings = settings or FakeSettings()
        self.level, self.context = settings.level, settings.context
        self.running = 0
        self.cancelled = 0
        self.seen: deque[GenerationRequest] = deque(maxlen=_MAX_SEEN)
        self.requests = 0
        self._queued_replies: deque[ScriptedReply] = deque()
        self._last_reply: ScriptedReply | None = None
        self._script = Script([])
        self._cache = PrefixCache()
        self._created = int(time.time())
        self._capabilities = _build_capabilities(settings)

    async def open(self) -> None:
        tokens, context = self.settings.tokens, self.settings.context
        if self.settings.reads.harmony and self.level != "harmony":
            raise StartupError("The fake engine generates Harmony only with --fake-level harmony.")
        if tokens is not None and context is not None and tokens >= context:
            raise StartupError(f"An answer of {tokens} tokens does not fit into a context of {context}.")
        if self.settings.script is not None:
            self._script = load_script(self.settings.script)

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]:
        return [Model(id="fake", created=self._created)]

    def serves(self, model: str) -> bool:
        return True

    def is_healthy(self) -> bool:
        return True

    async def capabilities(self, model: str) -> Capabilities:
        return self._capabilities

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return self.parse_prompt(prompt).tokens

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        """Yield the lists of chunks. A request that is closed before its last chunk counts as cancelled."""
        self.seen.append(request)
        self.requests += 1
        self.running += 1
        ended = False
        try:
            playback = self._create_playback(request)
            if self.settings.delay:
                await sleep(self.settings.delay)
            for action, lists in playback.steps(self.settings.burst):
                if action is not None:
                    await action()
                for chunks in lists:
                    yield chunks
            ended = True
            if last := playback.last_chunk():
                if request.sampling.return_token_ids and "tokenize" in self._capabilities.tasks:
                    last.extras = last.extras or EngineExtras()
                    last.extras.prompt_token_ids = list(await self.tokenize(request.model, request.prompt))
                yield [last]
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += not ended
            raise
        finally:
            self.running -= 1

    def _create_playback(self, request: GenerationRequest) -> Playback:
        prompt = self.parse_prompt(request.prompt)
        cached = self._cache.match(prompt.text, request.salt) // prompt.width
        # As in real engines, the last prompt token is always computed.
        input_counts = TokenCounts(input_tokens=prompt.tokens, cached_tokens=max(0, min(cached, prompt.tokens - 1)))
        reply = (
            self._queued_replies.popleft()
            if self._queued_replies
            else self._script.match(self.requests, request, prompt)
        )
        if reply is None:
            answer = self._compose_answer(request, prompt)
            return AutomaticPlayback(answer, input_counts, self.settings.joined, self.settings.rate)
        no_answer = AnswerChunks(chunks=[], finish="stop")
        answer = self._compose_answer(request, prompt) if None in reply.steps else no_answer
        renderer = HarmonyReplyRenderer(request) if self.level == "harmony" else ReplyRenderer(self.level)
        return ScriptedPlayback(reply, answer, renderer, input_counts)

    def _compose_answer(self, request: GenerationRequest, prompt: ParsedPrompt) -> AnswerChunks:
        context, tokens = self.settings.context, self.settings.tokens
        room = None if context is None else context - prompt.tokens
        if room is not None and room < 1:
            raise ContextTooLong(f"The input has {prompt.tokens} tokens; this model takes {context}.", param="input")
        if self.level == "harmony":
            return split_harmony_answer(
                compose_answer(request, replace(prompt, width=WIDTH), tokens), request, prompt, room
            )
        content = compose_answer(request, prompt, tokens)
        return split_answer(content, request, prompt, raw=self.settings.level != "chat", room=room)

    # API for tests: queues the replies to the next requests, in the order of the calls.

    def says(
        self,
        *contents: Delta | Chunk | Sequence[Delta | Chunk],
        finish: FinishKind | UnsetType | None = UNSET,
        counts: TokenCounts | None = None,
    ) -> None:
        """Queue a reply with one chunk per delta; deltas in a list arrive together.

        A `finish` of None ends the stream without a last chunk.
        """
        bursts = [make_burst(content) for content in contents]
        has_calls = any(chunk.calls for burst in bursts for chunk in burst)
        if finish is UNSET:
            finish = "tool_calls" if has_calls else "stop"
        self._enqueue(ScriptedReply([burst for burst in bursts if burst], finish, counts))

    def answers(self) -> None:
        """Queue the automatic answer, for the request after the queued replies."""
        self._enqueue(ScriptedReply([None]))

    def repeats(self, times: int = 1) -> None:
        """Queue the last queued reply again, `times` times."""
        if self._last_reply is None:
            raise ValueError("there is no earlier reply to repeat")
        for _ in range(times):
            self._enqueue(replace(self._last_reply, inserted=[]))  # gates and faults apply to one playback only

    def fails(self, error: Exception, after: int = 0) -> None:
        """Raise an error after `after` bursts of the last queued reply, or of an automatic answer if none is queued.

        `holds` and `waits` choose the reply in the same way.
        """
        self._insert(make_fault(error), after)

    def holds(self, after: int = 0) -> Gate:
        """Stop after `after` bursts until the test opens the returned gate."""
        gate = Gate()
        self._insert(gate.wait, after)
        return gate

    def waits(self, event: asyncio.Event, after: int = 0) -> None:
        """Stop after `after` bursts until the event is set."""
        self._insert(event.wait, after)

    def _enqueue(self, reply: ScriptedReply) -> None:
        self._last_reply = reply
        self._queued_replies.append(reply)

    def _insert(self, action: Action, after: int) -> None:
        if not self._queued_replies:
            self.answers()
        self._queued_replies[-1].inserted.append((after, action))


def _build_capabilities(settings: FakeSettings) -> Capabilities:
    level = settings.level
    tasks: set[Task] = {"generate", "embed", "score", "rerank", "moderate", "transcribe", "speak"}
    if level in ("tokens", "harmony"):
        tasks |= {"tokenize", "detokenize"}
    prompt_level: PromptLevel = "tokens" if level == "harmony" else level
    accepted_levels = _PROMPT_LEVELS if level == "chat" else _PROMPT_LEVELS - {"chat"}
    return Capabilities(
        level=prompt_level,
        other_levels=accepted_levels - {prompt_level},
        tasks=frozenset(tasks),
        supported_fields=_SUPPORTED_FIELDS[level],
        unsupported_reasons=_UNSUPPORTED_REASONS,
        context=settings.context,
        slots=settings.at_once,
        can_count_tokens=True,
        template=TEMPLATE if level in ("text", "tokens") else None,
        architecture=ARCHITECTURE if level == "harmony" else "fake",
        parser_choice=settings.reads,
    )
