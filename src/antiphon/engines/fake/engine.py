"""An engine without a model, for tests, demos and load: shipped, deterministic, at every level of prompt.

It repeats what it heard, calls tools, fills in schemas and thinks (answer.py), unless the next reply was
written beforehand: by a test (`engine.says`) or in a script file (script.py). It serves any model name.
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
from antiphon.core.prompt import Chunk, Counts, Extras, Finish, Prompt, Reads, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities, Model
from antiphon.engines.base import Level as Prompts
from antiphon.engines.fake.answer import Spoken, answer, speak
from antiphon.engines.fake.harmony_loader import ARCHITECTURE, harmony
from antiphon.engines.fake.playback import Play, Spontaneous, TextVoice, Voice, Written
from antiphon.engines.fake.prefix_cache import PrefixCache
from antiphon.engines.fake.prompt_reader import Reading
from antiphon.engines.fake.reply import Action, Automatic, Fault, Gate, Reply, burst
from antiphon.engines.fake.script import Script, load_script
from antiphon.engines.fake.tasks import FakeDeeds, does
from antiphon.engines.fake.tokens import TEMPLATE, WIDTH, Level, encode
from antiphon.errors import ContextTooLong, StartupError

_VACUOUS = {
    # They shape chance, and nothing here is left to chance.
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "logit_bias",
}  # fmt: skip
_EVERYWHERE = _VACUOUS | {
    "max_output_tokens", "stop", "include_stop_str_in_output", "ignore_eos", "logprobs", "top_logprobs", "n",
    "text.format", "reasoning.effort", "chat_template_kwargs", "min_tokens", "grammar.regex", "dimensions",
    "truncate_prompt_tokens",
}  # fmt: skip
_CHAT = {
    "tools", "tool_choice", "parallel_tool_calls", "input_image", "input_file", "input_audio", "developer",
}  # fmt: skip
_BY_NUMBER = {"skip_special_tokens", "stop_token_ids", "return_token_ids"}  # where tokens have one
# As Harmony it says what it says: Antiphon ends it at a stop string.
_UNHEARD = {"stop", "include_stop_str_in_output", "ignore_eos", "min_tokens", "grammar.regex", "chat_template_kwargs"}
_HONOURS: dict[Level, frozenset[str]] = {
    "chat": frozenset(_EVERYWHERE | _CHAT),
    "text": frozenset(_EVERYWHERE | {"skip_special_tokens"}),
    "tokens": frozenset(_EVERYWHERE | _BY_NUMBER),
    "harmony": frozenset((_EVERYWHERE | _BY_NUMBER) - _UNHEARD),
}
_LACKS = {"prompt_logprobs": "The fake engine makes none for a prompt."}
_KINDS: frozenset[Prompts] = frozenset({"chat", "text", "tokens"})
_SEEN = 4  # works, each of which holds a whole prompt


class FakeSettings(Struct, frozen=True, kw_only=True):
    level: Level = "chat"
    script: Path | None = None
    tokens: int | None = None  # of every free answer, to make load
    rate: float | None = None  # tokens per second of each stream; None: as fast as they are taken
    joined: int = 1  # tokens in a list
    burst: int = 16  # lists until other streams get their turn; 1: each list comes by itself
    delay: float = 0.0  # seconds before the first chunk
    context: int | None = 32_768
    at_once: int | None = None  # answers; not called slots, which is a setting of the embedded engine
    reads: Reads = Reads()


class FakeEngine(FakeDeeds):
    """`running` is the work in flight, `seen` what came last, `cancelled` how many were closed before their end."""

    name = "fake"

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.settings = settings or FakeSettings()
        self.level, self.context = self.settings.level, self.settings.context
        self.running = 0
        self.cancelled = 0
        self.seen: deque[Work] = deque(maxlen=_SEEN)
        self.requests = 0
        self._written: deque[Reply] = deque()
        self._last: Reply | None = None
        self._script = Script([])
        self._cache = PrefixCache()
        self._created = int(time.time())
        self._able = _able(self.settings)

    async def open(self) -> None:
        tokens, context = self.settings.tokens, self.settings.context
        if self.settings.reads.harmony and self.level != "harmony":
            raise StartupError("The fake engine speaks Harmony with --fake-level harmony.")
        if tokens is not None and context is not None and tokens >= context:
            raise StartupError(f"An answer of {tokens} tokens does not fit into a context of {context}.")
        if self.settings.script is not None:
            self._script = load_script(self.settings.script)

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]:
        return [Model(id="fake", created=self._created)]

    def serves(self, model: str) -> bool:
        return True

    def healthy(self) -> bool:
        return True

    async def capabilities(self, model: str) -> Capabilities:
        return self._able

    async def count(self, model: str, prompt: Prompt) -> int:
        return self.reading(prompt).tokens

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        """Work that is closed or cancelled before its last word counts as cancelled."""
        self.seen.append(work)
        self.requests += 1
        self.running += 1
        ended = False
        try:
            play = self._play(work)
            if self.settings.delay:
                await sleep(self.settings.delay)
            for before, lists in play.steps(self.settings.burst):
                if before is not None:
                    await before.act()
                for chunks in lists:
                    yield chunks
            ended = True
            if last := play.last():
                yield [self._with_prompt(last, work)]
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += not ended
            raise
        finally:
            self.running -= 1

    def _with_prompt(self, last: Chunk, work: Work) -> Chunk:
        """And the numbers of the prompt's tokens, for who wants them."""
        if work.sampling.return_token_ids and isinstance(work.prompt, TextPrompt | TokenPrompt):
            prompt = work.prompt
            encoded = harmony().encode if self.level == "harmony" else encode
            tokens = prompt.tokens if isinstance(prompt, TokenPrompt) else encoded(prompt.segments)
            last.extras = last.extras or Extras()
            last.extras.prompt_token_ids = list(tokens)
        return last

    def _play(self, work: Work) -> Play:
        reading = self.reading(work.prompt)
        cached = self._cache.match(reading.text, work.salt) // reading.width
        # As everywhere, the last token is computed anew.
        heard = Counts(input_tokens=reading.tokens, cached_tokens=max(0, min(cached, reading.tokens - 1)))
        reply = self._written.popleft() if self._written else self._script.match(self.requests, work, reading)
        if reply is not None:
            return Written(reply, lambda: self._speak(work, reading), _voice(self.level, work), heard)
        return Spontaneous(self._speak(work, reading), heard, self.settings.joined, self.settings.rate)

    def _speak(self, work: Work, reading: Reading) -> Spoken:
        context, tokens = self.settings.context, self.settings.tokens
        room = None if context is None else context - reading.tokens
        if room is not None and room < 1:
            raise ContextTooLong(f"The input has {reading.tokens} tokens; this model takes {context}.", param="input")
        if self.level == "harmony":
            return harmony().speak(answer(work, replace(reading, width=WIDTH), tokens), work, reading, room)
        said = answer(work, reading, tokens)
        return speak(said, work, reading, raw=self.settings.level != "chat", room=room)

    # The API of tests: what the next requests are answered with, in the order written.

    def says(
        self,
        *said: Delta | Chunk | Sequence[Delta | Chunk],
        finish: Finish | UnsetType | None = UNSET,
        counts: Counts | None = None,
    ) -> None:
        """One chunk for each delta, those in a list together; a `finish` of None breaks off without a last chunk."""
        bursts = [burst(one) for one in said]
        calls = any(chunk.calls for one in bursts for chunk in one.chunks)
        if finish is UNSET:
            finish = "tool_calls" if calls else "stop"
        self._write(Reply([one for one in bursts if one.chunks], finish, counts))

    def answers(self) -> None:
        """By itself, for the request after those that are written."""
        self._write(Reply([Automatic()]))

    def repeats(self, times: int = 1) -> None:
        """The last written reply again."""
        if self._last is None:
            raise ValueError("nothing was written that could be repeated")
        for _ in range(times):
            self._write(self._last.again())

    def fails(self, error: Exception, after: int = 0) -> None:
        """Put into the last written reply; into an automatic answer if none waits. So with `holds` and `waits`."""
        self._insert(Fault(error), after)

    def holds(self, after: int = 0) -> Gate:
        gate = Gate()
        self._insert(gate, after)
        return gate

    def waits(self, event: asyncio.Event, after: int = 0) -> None:
        self._insert(Gate(event), after)

    def _write(self, reply: Reply) -> None:
        self._last = reply
        self._written.append(reply)

    def _insert(self, action: Action, after: int) -> None:
        if not self._written:
            self.answers()
        self._written[-1].inserted.append((after, action))


def _able(settings: FakeSettings) -> Capabilities:
    level = settings.level
    prompt: Prompts = "tokens" if level == "harmony" else level
    kinds = _KINDS if level == "chat" else _KINDS - {"chat"}
    return Capabilities(
        prompt=prompt,
        takes=kinds - {prompt},
        does=does(level),
        honours=_HONOURS[level],
        lacks=_LACKS,
        context=settings.context,
        slots=settings.at_once,
        counts=True,
        template=TEMPLATE if level in ("text", "tokens") else None,
        architecture=ARCHITECTURE if level == "harmony" else "fake",
        reads=settings.reads,
    )


def _voice(level: Level, work: Work) -> Voice:
    return harmony().voice(work) if level == "harmony" else TextVoice(level)
