"""Request → Work: the history is rendered, made to fit the model's context, and given to the right parser.

A prompt that is too long is a 400 here where we can count, or loses its oldest items if the client said so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.declared import Declared
from antiphon.agent.rules import Insistence
from antiphon.core.deltas import Said
from antiphon.core.history import History, droppable, make_history, shorter
from antiphon.core.prompt import ChatPrompt, Json, Prompt, Sampling, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Engine
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.base import PLAIN, Parser, Reading
from antiphon.parsers.registry import load_parser
from antiphon.protocol.codec import Decoded
from antiphon.protocol.items import InputItem
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.response import TextFormat
from antiphon.render.attached import Attached
from antiphon.render.messages import Rendered, framed, render_chat
from antiphon.render.tools import Hosting, declares, nothing_hosted
from antiphon.service.aim import Aim
from antiphon.service.insisting import insistence
from antiphon.service.naming import OutputTokens as OutputTokens
from antiphon.service.tongues import Heard, Tongue, speak

Fitted = tuple[Rendered, Prompt, int | None]  # and its tokens, if they had to be counted
Bring = Callable[[Attached], Awaitable[None]]  # all that is wanted is found after it


class Known(Struct, frozen=True, kw_only=True):
    """What a model is to know beyond the request."""

    earlier: Sequence[InputItem] = ()  # the items before the request's input
    said: Mapping[str, Said] = {}  # what tools said that their items do not say, by the items' ids
    hosting: Hosting = nothing_hosted


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


async def prepare(decoded: Decoded, known: Known, aim: Aim, bring: Bring) -> Prepared:
    request, served, able = decoded.request, aim.served, aim.able
    tongue = aim.tongue or _spoken(decoded, aim)
    fit = _Fit(request, known, aim, tongue, bring)
    rendered, prompt, tokens = fit.at_once() or await fit.fitted()
    if rendered.offered.offers and "tools" not in tongue.honours:
        reason = able.lacks.get("tools", "")
        raise UnsupportedParameter(
            f"'tools' are not supported by this model on the {served.engine.name} engine. {reason}".rstrip(),
            param="tools",
        )
    heard = tongue.hear(rendered.prompt)
    sampled = aim.sampling if tokens is None else _within(aim, tokens)
    if heard.stops or heard.reading.stop:
        sampled = _stopped(sampled, heard)
    work = Work(
        model=served.model,
        prompt=prompt,
        sampling=sampled,
        constraint=heard.constraint,
        shown=heard.shown,
        effort=request.reasoning.effort,
        level=able.prompt,
        whole=able.wholes and _whole(request, sampled, heard),
        cache_key=request.prompt_cache_key,
        affinity=request.prompt_cache_key or (request.conversation.id if request.conversation else None),
    )
    parser = load_parser(heard.parser)(prompt, heard.reading)
    declared = Declared(rendered.offered.offers, parallel=request.parallel_tool_calls)
    return Prepared(
        engine=served.engine,
        work=work,
        parser=parser,
        reading=heard.reading,
        declared=declared,
        insists=await insistence(request, rendered, tongue, heard, prompt) if _demands(request, rendered) else None,
        ignored=rendered.offered.ignored,
        history=fit.history,
        shortened=fit.shortened,
        unlisted=rendered.offered.unlisted,
        tokens=tokens,
        messages=rendered.prompt.messages,
    )


def _spoken(decoded: Decoded, aim: Aim) -> Tongue:
    """Kept for all of its kind, if it can be: but without the input of the first."""
    tongue = speak(decoded.request, aim.able, aim.served.model)
    if tongue.lasts and decoded.kind is not None:
        aim.tongue = speak(decoded.kind.request, aim.able, aim.served.model)
    return tongue


class _Fit:
    """Renders a request's history so that the model's context has room for it and for an answer."""

    def __init__(
        self,
        request: CreateResponse,
        known: Known,
        aim: Aim,
        tongue: Tongue,
        bring: Bring,
    ) -> None:
        self._request = request
        self._known = known
        self._aim = aim
        self._able = aim.able
        self._tongue = tongue
        self._bring = bring
        self._attached = Attached()
        self._now: datetime | None = None  # one moment for all that is rendered
        self._made: tuple[Rendered, Prompt] | None = None
        self.history = History()
        self.shortened = False

    def at_once(self) -> Fitted | None:
        """None: others should not have to wait for it, or something has to be brought or counted first."""
        if len(self._known.earlier) + len(self._request.input) > AT_ONCE:
            return None
        self.history = history = self._history()
        rendered = self._chat(history)
        if self._attached.wanted or self._tongue.long(rendered.prompt):
            return None
        prompt = self._tongue.say(rendered.prompt, self._moment)
        self._made = rendered, prompt
        return (rendered, prompt, None) if self._surely_fits(prompt) else None

    async def fitted(self) -> Fitted:
        """In threads where it takes long, with all that it shows and as short as it has to be."""
        made = self._made
        if made is None and not self._attached.wanted:
            made = await asyncio.to_thread(self._begin)
        if made is None or self._attached.wanted:
            await self._bring(self._attached)
            made = await asyncio.to_thread(self._begin)
        rendered, prompt = made
        if self._surely_fits(prompt):
            return rendered, prompt, None
        context, tokens = self._able.context or 0, await self._count(prompt)
        if tokens < context:
            return rendered, prompt, tokens
        if self._request.truncation == "disabled":
            raise _too_long(tokens, context)
        self.shortened = True
        return await self._shortened(self.history, context - _reserve(self._aim.most, context))

    def _surely_fits(self, prompt: Prompt) -> bool:
        """Nobody has to count: it could not be told to be too long, or is short even by the byte."""
        context = self._able.context
        if context is None or not (self._able.counts or isinstance(prompt, TokenPrompt)):
            return True
        return size_of(prompt) + (self._aim.most or 0) < context

    def _begin(self) -> tuple[Rendered, Prompt]:
        self.history = self._history()
        return self._render(self.history)

    def _history(self) -> History:
        before = "previous_response_id" if self._request.conversation is None else "conversation"
        return make_history(self._known.earlier, self._request.input, before, self._known.said)

    async def _shortened(self, history: History, budget: int) -> tuple[Rendered, Prompt, int]:
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
        if tokens >= (self._able.context or 0):
            raise _too_long(tokens, self._able.context or 0)
        return rendered, prompt, tokens

    def _cut(self, history: History, drop: int) -> tuple[Rendered, Prompt]:
        return self._render(shorter(history, drop))

    def _render(self, history: History) -> tuple[Rendered, Prompt]:
        rendered = self._chat(history)
        return rendered, self._said(rendered)

    def _chat(self, history: History) -> Rendered:
        frame = self._aim.frame
        if frame is None or (not history.plain and declares(history)):
            frame = framed(self._request, history, self._known.hosting)
            if not declares(history):
                self._aim.frame = frame
        return render_chat(history, self._request, self._tongue.honours, self._attached, frame)

    def _said(self, rendered: Rendered) -> Prompt:
        if self._attached.wanted:
            return rendered.prompt
        return self._tongue.say(rendered.prompt, self._moment)

    def _moment(self) -> datetime:
        self._now = self._now or datetime.now()
        return self._now

    async def _count(self, prompt: Prompt) -> int:
        if isinstance(prompt, TokenPrompt):
            return len(prompt.tokens)
        served = self._aim.served
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


def _demands(request: CreateResponse, rendered: Rendered) -> bool:
    """May anything be demanded of the answer?"""
    return bool(rendered.offered.offers) or type(request.text.format) is not TextFormat


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


def _too_long(tokens: int, context: int) -> ContextTooLong:
    return ContextTooLong(
        f"The input has {tokens} tokens, but this model's context has room for {context}, the answer included. "
        "Shorten the input, or send truncation: 'auto'.",
        param="input",
    )
