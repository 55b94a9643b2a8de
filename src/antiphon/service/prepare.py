"""Request → Work: the history is rendered, made to fit the model's context, and given to the right parser.

A prompt that is too long is a 400 here where we can count, or loses its oldest items if the client said so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.declared import Declared
from antiphon.core.history import History, droppable, make_history, shorter
from antiphon.core.prompt import ChatPrompt, Prompt, TextPrompt, TokenPrompt, Work
from antiphon.engines.base import Capabilities, Engine
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.base import Parser
from antiphon.parsers.registry import load_parser
from antiphon.protocol.codec import Decoded
from antiphon.protocol.items import InputItem
from antiphon.protocol.request import CreateResponse
from antiphon.render.attached import Attached
from antiphon.render.messages import Rendered, render_chat
from antiphon.render.template import render_text, thinks
from antiphon.service.models import Served
from antiphon.service.naming import OutputTokens as OutputTokens
from antiphon.service.sampling import constraint, sampling

Bring = Callable[[Attached], Awaitable[None]]  # all that is wanted is found after it

AT_ONCE = 500  # items whose history is rendered where it is asked for, at some 25 µs each


class Prepared(Struct, frozen=True, kw_only=True):
    """For one call of the model."""

    engine: Engine
    work: Work
    parser: Parser
    declared: Declared
    ignored: tuple[str, ...]
    tokens: int | None  # of the prompt, if they had to be counted

    def again(self) -> "Prepared":
        """The same, for another call."""
        return replace(self, parser=type(self.parser)(self.work.prompt), declared=self.declared.again())


async def prepare(
    decoded: Decoded, earlier: Sequence[InputItem], served: Served, able: Capabilities, room: OutputTokens, bring: Bring
) -> Prepared:
    """`earlier`: the items before the request's input."""
    request = decoded.request
    asked = room.allowed(request.max_output_tokens)
    fit = _Fit(request, earlier, served, able, bring)
    rendered, prompt, tokens = await fit.fitted(asked)
    if rendered.offered.offers and "tools" not in able.honours:
        reason = able.lacks.get("tools", "")
        raise UnsupportedParameter(
            f"'tools' are not supported by this model on the {served.engine.name} engine. {reason}".rstrip(),
            param="tools",
        )
    left = None if tokens is None or able.context is None else able.context - tokens
    work = Work(
        model=served.model,
        prompt=prompt,
        sampling=sampling(request, decoded.sent, _least(asked, left)),
        constraint=constraint(request),
        effort=request.reasoning.effort,
        level=able.prompt,
        cache_key=request.prompt_cache_key,
        affinity=request.prompt_cache_key or (request.conversation.id if request.conversation else None),
    )
    parser = load_parser(_parser_name(request, able))(prompt)
    declared = Declared(rendered.offered.offers, parallel=request.parallel_tool_calls)
    return Prepared(
        engine=served.engine,
        work=work,
        parser=parser,
        declared=declared,
        ignored=rendered.offered.ignored,
        tokens=tokens,
    )


class _Fit:
    """Renders a request's history so that the model's context has room for it and for an answer."""

    def __init__(
        self, request: CreateResponse, earlier: Sequence[InputItem], served: Served, able: Capabilities, bring: Bring
    ) -> None:
        self._request = request
        self._earlier = earlier
        self._served = served
        self._able = able
        self._bring = bring
        self._attached = Attached()
        self._now: datetime | None = None  # one moment for all that is rendered

    async def fitted(self, asked: int | None) -> tuple[Rendered, Prompt, int | None]:
        """And its tokens, if they had to be counted."""
        history, rendered, prompt = await self._begun()
        context = self._able.context
        if context is None or not self._able.counts or _bytes(prompt) + (asked or 0) < context:
            return rendered, prompt, None
        tokens = await self._count(prompt)
        if tokens < context:
            return rendered, prompt, tokens
        if self._request.truncation == "disabled":
            raise _too_long(tokens, context)
        return await self._shortened(history, context - _reserve(asked, context))

    async def _begun(self) -> tuple[History, Rendered, Prompt]:
        """Once more, if pictures and files had to be brought first."""
        begun = await self._once()
        if not self._attached.wanted:
            return begun
        await self._bring(self._attached)
        return await self._once()

    async def _once(self) -> tuple[History, Rendered, Prompt]:
        """In a thread if it is much, so that others need not wait for it."""
        if len(self._earlier) + len(self._request.input) <= AT_ONCE:
            return self._begin()
        return await asyncio.to_thread(self._begin)

    def _begin(self) -> tuple[History, Rendered, Prompt]:
        before = "previous_response_id" if self._request.conversation is None else "conversation"
        history = make_history(self._earlier, self._request.input, before)
        return history, *self._render(history)

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
        rendered = render_chat(history, self._request, self._able.honours, self._attached)
        if self._able.template is None or self._attached.wanted:
            return rendered, rendered.prompt
        self._now = self._now or datetime.now()
        return rendered, render_text(self._able.template, rendered.prompt, self._now)

    async def _count(self, prompt: Prompt) -> int:
        return await self._served.engine.count(self._served.model, prompt)


def _bytes(prompt: Prompt) -> int:
    """At least as much as its tokens: no token is shorter than a byte."""
    match prompt:
        case ChatPrompt():
            return len(msgspec.json.encode(prompt))
        case TextPrompt(segments=segments):
            return sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments])
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def _reserve(asked: int | None, context: int) -> int:
    """Tokens that a shortened prompt leaves for the answer."""
    return min(asked or context // 4, context // 2)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _parser_name(request: CreateResponse, able: Capabilities) -> str:
    if able.prompt == "chat":
        return "chat"
    marked = able.template is None or thinks(able.template)  # of a template that only the engine knows, it may be
    return "think" if marked and request.skip_special_tokens is not False else "plain"


def _too_long(tokens: int, context: int) -> ContextTooLong:
    return ContextTooLong(
        f"The input has {tokens} tokens, but this model's context has room for {context}, the answer included. "
        "Shorten the input, or send truncation: 'auto'.",
        param="input",
    )
