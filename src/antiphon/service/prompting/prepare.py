"""Request → Work: the history is rendered, made to fit the model's context, and given to the right parser.

A prompt that is too long is a 400 here where we can count, or loses its oldest items if the client said so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.agent.output_rules import Insistence, Rules
from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import Said
from antiphon.core.history.history import UNSAID, History, droppable, make_history, shorter
from antiphon.core.prompt import ChatPrompt, Json, Prompt, Sampling, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Engine
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.base import PLAIN, Parser, Reading
from antiphon.parsers.registry import load_parser
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.items import Compaction, InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import Attached
from antiphon.render.messages import Frame, Rendered, framed, render_chat
from antiphon.render.tools.declarations import Hosting, declares
from antiphon.service.encryption.cache_salt import TENANT
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.model_io.models import OutputTokens as OutputTokens
from antiphon.service.model_io.selection import Heard, Tongue, speak
from antiphon.service.prompting.call_template import Aim, Mould
from antiphon.service.prompting.compaction_items import reopened
from antiphon.service.prompting.engine_fields import asks_nothing, granted
from antiphon.service.prompting.output_requirements import AskedAgain, check_grammars, has_grammars, rules_of

Fitted = tuple[Rendered, Prompt, int | None]  # and its tokens, if they had to be counted
Bring = Callable[[str, Attached], Awaitable[None]]  # for a tenant; all that is wanted is found after it


class Known(Struct, frozen=True):
    """What a model is to know beyond the request, and who asks."""

    tenant: str
    earlier: Sequence[InputItem] = ()  # the items before the request's input
    said: Mapping[str, Said] = UNSAID  # what tools said that their items do not say, by the items' ids
    opened: bool = False  # all that is compacted among these and the input, if anything is


class Means(Struct, frozen=True):
    """What a server has for all requests, to find what is not said in them."""

    bring: Bring
    hosting: Hosting
    keyring: Keyring


AT_ONCE = 500  # items whose history is rendered where it is asked for, at some 25 µs each


class Prepared(Struct, frozen=True, kw_only=True):
    """For one call of the model."""

    engine: Engine
    work: Work
    parser: Parser
    reading: Reading = PLAIN
    declared: Declared
    insists: Insistence | None = None
    ignored: tuple[str, ...]
    history: History = History()  # all of it, as it was before it was made to fit
    shortened: bool = False  # it did not fit
    unlisted: tuple[str, ...] = ()  # labels of MCP servers whose tools are not known yet
    tokens: int | None  # of the prompt, if they had to be counted
    warms: bool = False  # nothing is to be said
    messages: tuple[Json, ...] = ()  # of the prompt, as a chat

    def again(self) -> "Prepared":
        """The same, for another call."""
        parser = type(self.parser)(self.work.prompt, self.reading)
        return replace(self, parser=parser, declared=self.declared.again())


def prepare(decoded: Decoded, known: Known, aim: Aim, means: Means) -> Prepared | Awaitable[Prepared]:
    """It is there at once, unless others should not have to wait for it or something has to be found out first."""
    request, earlier = decoded.request, known.earlier
    if not known.opened and Compaction in map(type, chain(earlier, request.input)):
        return _reopened(decoded, known, aim, means)
    tongue = aim.tongue or _spoken(decoded, aim)
    if len(earlier) + len(request.input) > AT_ONCE:
        return _Fit(request, known, aim, tongue, means).later()
    history = make_history(earlier, request.input, aim.before, known.said)
    fit = _Fit(request, known, aim, tongue, means, history)
    frame = (aim.frame if history.plain else None) or fit.frame(history)
    rendered = render_chat(history, request, tongue.honours, fit.attached, frame)
    prompt: Prompt = rendered.prompt
    if fit.attached.wanted:
        return fit.later()
    if not tongue.verbatim:
        if tongue.long(rendered.prompt):
            return fit.later()
        prompt = tongue.say(rendered.prompt, fit.moment)
    if aim.able.context is None or fit.surely_fits(prompt):
        return fit.prepared(rendered, prompt, None)
    fit.made = rendered, prompt
    return fit.later()


async def there(prepared: Prepared | Awaitable[Prepared]) -> Prepared:
    return prepared if isinstance(prepared, Prepared) else await prepared


async def _reopened(decoded: Decoded, known: Known, aim: Aim, means: Means) -> Prepared:
    request = decoded.request
    earlier, given = await reopened(means.keyring, known.tenant, known.earlier, request.input, aim.before)
    if given is not request.input:
        decoded = replace(decoded, request=replace(request, input=[*given]))
    return await there(prepare(decoded, replace(known, earlier=earlier, opened=True), aim, means))


def _spoken(decoded: Decoded, aim: Aim) -> Tongue:
    """Kept for all of its kind, if it can be: but without the input of the first."""
    tongue = speak(decoded.request, aim.able, aim.served.model)
    if tongue.lasts and decoded.kind is not None:
        aim.tongue = speak(decoded.kind.request, aim.able, aim.served.model)
    return tongue


class _Fit(Struct, eq=False):
    """Renders a request's history so that the model's context has room for it and for an answer."""

    request: CreateResponse
    known: Known
    aim: Aim
    tongue: Tongue
    means: Means
    history: History = History()
    attached: Attached = field(default_factory=Attached)
    now: datetime | None = None  # one moment for all that is rendered
    made: tuple[Rendered, Prompt] | None = None
    shortened: bool = False

    async def later(self) -> Prepared:
        return await there(self.prepared(*await self._fitted()))

    def prepared(self, rendered: Rendered, prompt: Prompt, tokens: int | None) -> Prepared | Awaitable[Prepared]:
        aim, request, tenant = self.aim, self.request, self.known.tenant
        mould = aim.mould
        if mould is None or mould.frame is not rendered.frame or prompt is not rendered.prompt:
            mould = self._moulded(rendered, prompt)
        work = replace(mould.work, prompt=prompt)
        if tokens is not None:
            work = replace(work, sampling=_stopped(_within(aim, tokens), mould.heard))
        if tenant != TENANT or not mould.bare:
            work = granted(tenant, request, work)
        heard, rules, offered = mould.heard, mould.rules, rendered.offered
        insists = None
        if rules is not None:
            insists = Insistence(rules=rules, again=AskedAgain(rendered.prompt, self.tongue, heard, prompt))
        made = Prepared(
            engine=aim.served.engine,
            work=work,
            parser=mould.reader(prompt, heard.reading),
            reading=heard.reading,
            declared=Declared(offered.offers, request.parallel_tool_calls),
            insists=insists,
            ignored=offered.ignored,
            history=self.history,
            shortened=self.shortened,
            unlisted=offered.unlisted,
            tokens=tokens,
            messages=rendered.prompt.messages,
        )
        return made if rules is None or not mould.grammars else self._checked(made, rules)

    async def _checked(self, made: Prepared, rules: Rules) -> Prepared:
        await check_grammars(rules, self.request)
        return made

    def _moulded(self, rendered: Rendered, prompt: Prompt) -> Mould:
        request, aim, able, tongue = self.request, self.aim, self.aim.able, self.tongue
        if rendered.offered.offers and "tools" not in tongue.honours:
            sentence = f"'tools' are not supported by this model on the {aim.served.engine.name} engine."
            raise UnsupportedParameter(f"{sentence} {able.lacks.get('tools', '')}".rstrip(), param="tools")
        heard = tongue.hear(rendered.prompt, prompt)
        rules = rules_of(request, rendered, heard.held)
        sampling = _stopped(aim.sampling, heard)
        work = Work(
            model=aim.served.model,
            prompt=rendered.frame.chat,
            sampling=sampling,
            constraint=heard.constraint,
            shown=heard.shown,
            effort=request.reasoning.effort,
            level=able.prompt,
            whole=able.wholes and _whole(request, sampling, heard),
            cache_key=request.prompt_cache_key,
            affinity=request.prompt_cache_key or (request.conversation.id if request.conversation else None),
        )
        mould = Mould(
            frame=rendered.frame,
            heard=heard,
            reader=load_parser(heard.parser),
            work=work,
            bare=asks_nothing(request),
            rules=rules,
            grammars=rules is not None and has_grammars(rules),
        )
        if tongue.lasts and rendered.frame is aim.frame and prompt is rendered.prompt:
            aim.mould = mould
        return mould

    async def _fitted(self) -> Fitted:
        """In threads where it takes long, with all that it shows and as short as it has to be."""
        made = self.made
        if made is None and not self.attached.wanted:
            made = await asyncio.to_thread(self._begin)
        if made is None or self.attached.wanted:
            await self.means.bring(self.known.tenant, self.attached)
            made = await asyncio.to_thread(self._begin)
        rendered, prompt = made
        if self.surely_fits(prompt):
            return rendered, prompt, None
        context, tokens = self.aim.able.context or 0, await self._count(prompt)
        if tokens < context:
            return rendered, prompt, tokens
        if self.request.truncation == "disabled":
            raise _too_long(tokens, context, "Shorten the input, or send truncation: 'auto'.")
        self.shortened = True
        return await self._cut_short(self.history, context - _reserve(self.aim.most, context))

    def surely_fits(self, prompt: Prompt) -> bool:
        """Nobody has to count: it could not be told to be too long, or is short even by the byte."""
        able, context = self.aim.able, self.aim.able.context
        if context is None or not (able.counts or isinstance(prompt, TokenPrompt)):
            return True
        return size_of(prompt) + (self.aim.most or 0) < context

    def _begin(self) -> tuple[Rendered, Prompt]:
        known = self.known
        self.history = make_history(known.earlier, self.request.input, self.aim.before, known.said)
        return self._render(self.history)

    async def _cut_short(self, history: History, budget: int) -> tuple[Rendered, Prompt, int]:
        """Drop as few of the oldest units as will do: each one dropped makes the prompt shorter."""
        fewest, most = 1, await asyncio.to_thread(droppable, history)
        while fewest < most:
            middle = (fewest + most) // 2
            _, prompt = await asyncio.to_thread(self._cut, history, middle)
            if await self._count(prompt) <= budget:
                most = middle
            else:
                fewest = middle + 1
        rendered, prompt = await asyncio.to_thread(self._cut, history, most)
        tokens = await self._count(prompt)
        context = self.aim.able.context or 0
        if tokens >= context:
            raise _too_long(tokens, context, "Nothing of it can be left out: shorten it.")
        return rendered, prompt, tokens

    def _cut(self, history: History, drop: int) -> tuple[Rendered, Prompt]:
        return self._render(shorter(history, drop))

    def _render(self, history: History) -> tuple[Rendered, Prompt]:
        rendered = render_chat(history, self.request, self.tongue.honours, self.attached, self.frame(history))
        if self.attached.wanted:
            return rendered, rendered.prompt
        return rendered, self.tongue.say(rendered.prompt, self.moment)

    def frame(self, history: History) -> Frame:
        """Kept for all of its kind, unless the history declares tools of its own."""
        if declares(history):
            return framed(self.request, history, self.means.hosting)
        if self.aim.frame is None:
            self.aim.frame = framed(self.request, history, self.means.hosting)
        return self.aim.frame

    def moment(self) -> datetime:
        self.now = self.now or datetime.now()
        return self.now

    async def _count(self, prompt: Prompt) -> int:
        if isinstance(prompt, TokenPrompt):
            return len(prompt.tokens)
        served = self.aim.served
        return await served.engine.count(served.model, prompt)


def size_of(prompt: Prompt) -> int:
    """In bytes: at least as much as its tokens, since none is shorter."""
    match prompt:
        case ChatPrompt():
            return len(msgspec.json.encode(prompt))
        case TextPrompt(segments=segments):
            return sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments])
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def _whole(request: CreateResponse, sampling: Sampling, heard: Heard) -> bool:
    """Nobody hears of it before its end, and nobody ends it but the engine. Log probabilities come as they are made:
    together they are too much."""
    return not (request.stream or request.background or heard.reading.stop) and sampling.logprobs is None


def _reserve(asked: int | None, context: int) -> int:
    """Tokens that a shortened prompt leaves for the answer."""
    return min(asked or context // 4, context // 2)


def _within(aim: Aim, tokens: int) -> Sampling:
    """No longer than there is room beside a prompt of so many tokens."""
    if aim.able.context is None:
        return aim.sampling
    left = aim.able.context - tokens
    return replace(aim.sampling, max_tokens=left if aim.most is None else min(aim.most, left))


def _stopped(sampling: Sampling, heard: Heard) -> Sampling:
    """At the model's own tokens too, and not at strings that its reader looks for."""
    if heard.reading.stop:
        sampling = replace(sampling, stop=(), include_stop_str_in_output=False)
    return replace(sampling, stop_token_ids=sampling.stop_token_ids + heard.stops) if heard.stops else sampling


def _too_long(tokens: int, context: int, remedy: str) -> ContextTooLong:
    room = f"this model's context has room for {context}, the answer included"
    return ContextTooLong(f"The input has {tokens} tokens, but {room}. {remedy}", param="input")
