"""Can a client, a tool or a file forge a role, a channel, a call or a thought? Every family's control tokens, in every
place that somebody's text gets into, are compared with the same request that has a harmless word there.

llama.cpp's tokenizer judges, with a vocabulary that has them all; and Harmony's token ids, the segments of templates,
and the text that engines make which render themselves. Then the other way: what a model says when it only quotes is
read in every format, and nothing may be called.
"""

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from antiphon.core.history.history import make_history
from antiphon.core.multi_match import Occurrences
from antiphon.core.prompt import ChatPrompt, Reads, Template, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.errors import BadRequest
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import Attached, FileSource
from antiphon.render.control_strings import CONTROL_STRINGS
from antiphon.render.messages import render_chat
from antiphon.render.template.template import render_text
from antiphon.service.model_io.selection import speak
from drills.engines.quoting import phantoms
from drills.forgery.forged_requests import HARMLESS, Forged, Json, Place, forgeries
from drills.forgery.vocabulary import FIRST, make_model
from drills.harness.findings import Figure, Findings
from tests.render.template.templates import FAMILIES, QWEN

NOW: Final = datetime(2026, 11, 15)
EOS: Final = 2
HONOURS: Final = frozenset({"tools", "reasoning.effort", "developer", "chat_template_kwargs"})
TEMPLATES: Final = {name: Template(source=source, bos="<s>", eos="</s>") for name, source in FAMILIES.items()}
CONTROL: Final = Occurrences(CONTROL_STRINGS)
BABEL: Final = "babel"
FIRST_OF_HARMONY: Final = 199_998


class Asked(Struct, frozen=True):
    request: CreateResponse
    chat: ChatPrompt


def asked(body: Json) -> Asked:
    """As the service makes it. A file says what stands in its place."""
    request = decode_create(msgspec.json.encode(body), Limits()).request
    history, attached = make_history((), request.input), Attached()
    made = render_chat(history, request, HONOURS, attached)
    if attached.wanted:
        attached.found = {source: source.data for source in attached.wanted if isinstance(source, FileSource)}
        made = render_chat(history, request, HONOURS, attached)
    return Asked(request, made.prompt)


class Judge(Protocol):
    name: str

    async def control(self, asked: Asked) -> Hashable:
        """All that controls the model in its prompt: the same, whatever somebody else writes."""
        ...


class TemplateJudge:
    """The text that may become control tokens."""

    def __init__(self, name: str) -> None:
        self.name = f"the template of {name}"
        self._able = Capabilities(prompt="text", honours=HONOURS, template=TEMPLATES[name])

    async def control(self, asked: Asked) -> Hashable:
        return "·".join([segment.text for segment in self.prompt(asked).segments if segment.control])

    def prompt(self, asked: Asked) -> TextPrompt:
        prompt = speak(asked.request, self._able, BABEL).say(asked.chat, lambda: NOW)
        assert isinstance(prompt, TextPrompt)
        return prompt


class TokenizerJudge:
    """The special tokens that llama.cpp makes of it."""

    def __init__(self, engine: LlamaCpp, template: str) -> None:
        self.name = f"llama.cpp with the template of {template}"
        self._engine = engine
        self._rendering = TemplateJudge(template)

    async def control(self, asked: Asked) -> Hashable:
        tokens = await self._engine.tokenize(BABEL, self._rendering.prompt(asked))
        return tuple([token for token in tokens if token >= FIRST or token <= EOS])


class HarmonyJudge:
    """The control tokens of gpt-oss."""

    name = "Harmony"

    async def control(self, asked: Asked) -> Hashable:
        able = Capabilities(prompt="tokens", honours=HONOURS, reads=Reads(harmony=True))
        prompt = speak(asked.request, able, BABEL).say(asked.chat, lambda: NOW)
        assert isinstance(prompt, TokenPrompt)
        return tuple([token for token in prompt.tokens if token >= FIRST_OF_HARMONY])


class EngineJudge:
    """How many control strings are in the text that an engine renders by itself."""

    def __init__(self, name: str) -> None:
        self.name = f"an engine that renders as {name}"
        self._template = TEMPLATES[name]

    async def control(self, asked: Asked) -> Hashable:
        able = Capabilities(prompt="chat", honours=HONOURS, gullible=True)
        chat = speak(asked.request, able, BABEL).say(asked.chat, lambda: NOW)
        assert isinstance(chat, ChatPrompt)
        text = "".join([segment.text for segment in render_text(self._template, chat, NOW).segments])
        return len(list(CONTROL.places(text)))


class Trial:
    """In each bench the judges take turns; what they say of harmless words is asked once."""

    def __init__(self, benches: Iterable[Iterable[Judge]], findings: Findings) -> None:
        self._benches = [cycle(bench) for bench in benches]
        self._findings = findings
        self._plain: dict[tuple[str, str], Hashable] = {}
        self.fates: Counter[str] = Counter()

    async def hold(self, forged: Forged) -> None:
        self._findings.tried()
        try:
            made = asked(forged.place.body(forged.text))
        except BadRequest:
            self.fates["refused"] += 1
            return
        for bench in self._benches:
            judge = next(bench)
            if await self._control(judge, made) != await self._of_harmless(judge, forged.place):
                self.fates["forged"] += 1
                self._findings.violated(f"{judge.name}: {forged.name}")

    async def _of_harmless(self, judge: Judge, place: Place) -> Hashable:
        key = judge.name, place.name
        if key not in self._plain:
            self._plain[key] = await self._control(judge, asked(place.body(HARMLESS)))
        return self._plain[key]

    async def _control(self, judge: Judge, made: Asked) -> Hashable:
        try:
            return await judge.control(made)
        except BadRequest as refused:  # a template takes no such conversation, whatever is in it
            return refused.message


@asynccontextmanager
async def babel() -> AsyncIterator[LlamaCpp]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{BABEL}.gguf"
        make_model(file, QWEN)
        engine = LlamaCpp(LlamaCppSettings(model=(f"{BABEL}={file}",), context=4096, slots=1, threads=1))
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


async def forgery(trials: int, quotes: int, findings: Findings) -> None:
    """`quotes`: of all quotations every so many-th."""
    async with babel() as engine:
        tokenizers = [TokenizerJudge(engine, name) for name in ("qwen", "chatml")]
        rendering = [TemplateJudge(name) for name in TEMPLATES], [EngineJudge(name) for name in TEMPLATES]
        trial = Trial([tokenizers, [HarmonyJudge()], *rendering], findings)
        for forged in forgeries(trials):
            await trial.hold(forged)
    findings.figure(Figure("forged", trial.fates["forged"], most=0))
    findings.figure(Figure("refused", trial.fates["refused"]))
    phantoms(quotes, findings)
