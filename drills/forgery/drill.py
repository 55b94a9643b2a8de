"""Drill `forgery`: no text of a client, a tool or a file may forge a role, a channel, a call or reasoning.

Control tokens of every family, in every field that reaches a prompt, are compared with the same request that has a
harmless word there. The judges are llama.cpp's tokenizer with a vocabulary that contains all tokens, Harmony's token
ids, the segments of templates, and the text of engines that render prompts themselves. Conversely, model output that
only quotes markers is parsed in every format, and must not produce a call.
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
from antiphon.core.multi_match import MultiStringMatcher
from antiphon.core.prompt import ChatPrompt, ChatTemplate, ParserChoice, TextPrompt, TokenPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.errors import BadRequest
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.content import AttachmentLookup, FileAttachment
from antiphon.render.control_token_escape import CONTROL_STRINGS
from antiphon.render.messages import render_chat
from antiphon.render.template.template import render_text
from antiphon.service.model_io.served_model import make_adapter
from drills.engines.quoting import check_phantoms
from drills.forgery.forged_requests import HARMLESS, ForgedRequest, Json, TextField, make_forgeries
from drills.forgery.vocabulary import FIRST_SPECIAL, make_model
from drills.harness.findings import Figure, Findings
from tests.render.template.templates import FAMILIES, QWEN

NOW: Final = datetime(2026, 11, 15)
EOS: Final = 2
HONOURS: Final = frozenset({"tools", "reasoning.effort", "developer", "chat_template_kwargs"})
TEMPLATES: Final = {name: ChatTemplate(source=source, bos="<s>", eos="</s>") for name, source in FAMILIES.items()}
CONTROL: Final = MultiStringMatcher(CONTROL_STRINGS)
BABEL: Final = "babel"
FIRST_HARMONY_CONTROL: Final = 199_998


class RenderedRequest(Struct, frozen=True):
    request: CreateResponse
    chat: ChatPrompt


def render_request(body: Json) -> RenderedRequest:
    """Render a request as the service does; `file_data` is used as the text of a file."""
    request = decode_create(msgspec.json.encode(body), Limits()).request
    history, attached = make_history((), request.input), AttachmentLookup()
    rendered = render_chat(history, request, HONOURS, attached)
    if attached.missing:
        attached.found = {source: source.data for source in attached.missing if isinstance(source, FileAttachment)}
        rendered = render_chat(history, request, HONOURS, attached)
    return RenderedRequest(request, rendered.prompt)


class Judge(Protocol):
    name: str

    async def control(self, request: RenderedRequest) -> Hashable:
        """Return all control content of the prompt; it must not depend on untrusted text."""
        ...


class TemplateJudge:
    """Compares the text that may become control tokens."""

    def __init__(self, name: str) -> None:
        self.name = f"the template of {name}"
        self._capabilities = Capabilities(level="text", supported_fields=HONOURS, template=TEMPLATES[name])

    async def control(self, request: RenderedRequest) -> Hashable:
        return "·".join([segment.text for segment in self.render_prompt(request).segments if segment.control])

    def render_prompt(self, request: RenderedRequest) -> TextPrompt:
        prompt = make_adapter(request.request, self._capabilities, BABEL).render(request.chat, lambda: NOW)
        assert isinstance(prompt, TextPrompt)
        return prompt


class TokenizerJudge:
    """Compares the special tokens of llama.cpp's tokenizer."""

    def __init__(self, engine: LlamaCpp, template: str) -> None:
        self.name = f"llama.cpp with the template of {template}"
        self._engine = engine
        self._renderer = TemplateJudge(template)

    async def control(self, request: RenderedRequest) -> Hashable:
        tokens = await self._engine.tokenize(BABEL, self._renderer.render_prompt(request))
        return tuple([token for token in tokens if token >= FIRST_SPECIAL or token <= EOS])


class HarmonyJudge:
    """Compares the control tokens of gpt-oss."""

    name = "Harmony"

    async def control(self, request: RenderedRequest) -> Hashable:
        capabilities = Capabilities(level="tokens", supported_fields=HONOURS, parser_choice=ParserChoice(harmony=True))
        prompt = make_adapter(request.request, capabilities, BABEL).render(request.chat, lambda: NOW)
        assert isinstance(prompt, TokenPrompt)
        return tuple([token for token in prompt.tokens if token >= FIRST_HARMONY_CONTROL])


class EngineJudge:
    """Compares the number of control strings in the text of an engine that renders prompts itself."""

    def __init__(self, name: str) -> None:
        self.name = f"an engine that renders as {name}"
        self._template = TEMPLATES[name]

    async def control(self, request: RenderedRequest) -> Hashable:
        capabilities = Capabilities(level="chat", supported_fields=HONOURS, needs_control_escape=True)
        chat = make_adapter(request.request, capabilities, BABEL).render(request.chat, lambda: NOW)
        assert isinstance(chat, ChatPrompt)
        text = "".join([segment.text for segment in render_text(self._template, chat, NOW).segments])
        return len(list(CONTROL.find_starts(text)))


class ForgeryTrial:
    """Checks forged requests. The judges of each group take turns; their results for harmless words are cached."""

    def __init__(self, groups: Iterable[Iterable[Judge]], findings: Findings) -> None:
        self._groups = [cycle(group) for group in groups]
        self._findings = findings
        self._expected: dict[tuple[str, str], Hashable] = {}
        self.outcomes: Counter[str] = Counter()

    async def check(self, forged: ForgedRequest) -> None:
        self._findings.add_trials()
        try:
            rendered = render_request(forged.field.body(forged.text))
        except BadRequest:
            self.outcomes["refused"] += 1
            return
        for group in self._groups:
            judge = next(group)
            if await self._control(judge, rendered) != await self._harmless_control(judge, forged.field):
                self.outcomes["forged"] += 1
                self._findings.add_violation(f"{judge.name}: {forged.name}")

    async def _harmless_control(self, judge: Judge, field: TextField) -> Hashable:
        key = judge.name, field.name
        if key not in self._expected:
            self._expected[key] = await self._control(judge, render_request(field.body(HARMLESS)))
        return self._expected[key]

    async def _control(self, judge: Judge, rendered: RenderedRequest) -> Hashable:
        try:
            return await judge.control(rendered)
        except BadRequest as error:  # the template rejects such a conversation, whatever its text
            return error.message


@asynccontextmanager
async def run_babel_engine() -> AsyncIterator[LlamaCpp]:
    """Run llama.cpp with the model of all control tokens."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{BABEL}.gguf"
        make_model(file, QWEN)
        engine = LlamaCpp(LlamaCppSettings(model=(f"{BABEL}={file}",), context=4096, slots=1, threads=1))
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


async def forgery(trials: int, quote_step: int, findings: Findings) -> None:
    """Check `trials` forged requests, and every `quote_step`-th quotation."""
    async with run_babel_engine() as engine:
        tokenizers = [TokenizerJudge(engine, name) for name in ("qwen", "chatml")]
        renderers = [TemplateJudge(name) for name in TEMPLATES], [EngineJudge(name) for name in TEMPLATES]
        trial = ForgeryTrial([tokenizers, [HarmonyJudge()], *renderers], findings)
        for forged in make_forgeries(trials):
            await trial.check(forged)
    findings.add_figure(Figure("forged", trial.outcomes["forged"], maximum=0))
    findings.add_figure(Figure("refused", trial.outcomes["refused"]))
    check_phantoms(quote_step, findings)
