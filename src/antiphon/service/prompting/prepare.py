"""Request → PreparedPrompt: render the history, fit it into the model's context, and select the parser.

Where tokens can be counted, a prompt that is too long is a 400, or loses its oldest items with `truncation: auto`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.agent.output_rules import OutputRules, RetryPolicy
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import ToolOutputContent
from antiphon.core.history.history import NO_TOOL_OUTPUTS, History, count_droppable, drop_oldest, make_history
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Json, Prompt, Sampling, TextPrompt, TokenPrompt
from antiphon.engines.base import Engine
from antiphon.errors import ContextTooLong, UnsupportedParameter
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.parsers.registry import load_parser
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import Compaction, InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import AttachmentLookup
from antiphon.render.messages import PromptFrame, RenderedChat, build_frame, render_chat
from antiphon.render.tools.declarations import declares_tools
from antiphon.render.tools.offered_tools import HostedToolLookup
from antiphon.service.encryption.cache_salt import DEFAULT_TENANT
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.model_io.base import ModelAdapter, OutputSpec
from antiphon.service.model_io.selection import make_adapter
from antiphon.service.prompting.call_template import CallTemplate, ModelTarget
from antiphon.service.prompting.compaction_items import open_last_compaction
from antiphon.service.prompting.engine_fields import apply_engine_fields, has_no_engine_fields
from antiphon.service.prompting.output_requirements import RetryPromptBuilder, check_grammars, find_rules, has_grammars

FittedPrompt = tuple[RenderedChat, Prompt, int | None]  # with its tokens, if they were counted
LoadAttachments = Callable[
    [str, AttachmentLookup], Awaitable[None]
]  # called with the tenant; afterwards no source is missing


class PromptInputs(Struct, frozen=True):
    """Inputs of a prompt besides the request."""

    tenant: str
    earlier: Sequence[InputItem] = ()  # items before the request's input
    tool_texts: Mapping[str, ToolOutputContent] = (
        NO_TOOL_OUTPUTS  # tool results that are not part of their items, by item id
    )
    compactions_open: bool = False  # compactions among the items are already decrypted


class PromptServices(Struct, frozen=True):
    """Services of the server that rendering needs."""

    load_attachments: LoadAttachments
    hosting: HostedToolLookup
    keyring: Keyring


MAX_INLINE_ITEMS = 500  # more items are rendered in a thread, at about 25 µs each


class PreparedPrompt(Struct, frozen=True, kw_only=True):
    """Everything for one model call except its slot."""

    engine: Engine
    generation: GenerationRequest
    parser: Parser
    parser_options: ParserOptions = DEFAULT_OPTIONS
    tool_resolver: ToolCallResolver
    retry_policy: RetryPolicy | None = None
    ignored: tuple[str, ...]
    history: History = History()  # complete, before truncation
    shortened: bool = False  # items were dropped to fit the context
    unlisted_servers: tuple[str, ...] = ()  # labels of MCP servers whose tools are not listed yet
    tokens: int | None  # of the prompt, if they were counted
    is_warmup: bool = False  # the output is discarded
    messages: tuple[Json, ...] = ()  # the prompt as chat messages

    def copy_for_call(self) -> "PreparedPrompt":
        """Return a copy for another model call, with its own parser and resolver."""
        parser = type(self.parser)(self.generation.prompt, self.parser_options)
        return replace(self, parser=parser, tool_resolver=self.tool_resolver.copy_for_retry())


def prepare(
    decoded: DecodedRequest, inputs: PromptInputs, target: ModelTarget, services: PromptServices
) -> PreparedPrompt | Awaitable[PreparedPrompt]:
    """Prepare the prompt. The result is immediate unless rendering is slow or something must be loaded or counted
    first.
    """
    request, earlier = decoded.request, inputs.earlier
    if not inputs.compactions_open and Compaction in map(type, chain(earlier, request.input)):
        return _open_and_prepare(decoded, inputs, target, services)
    adapter = target.adapter or _select_adapter(decoded, target)
    if len(earlier) + len(request.input) > MAX_INLINE_ITEMS:
        return _PromptFitter(request, inputs, target, adapter, services).prepare_async()
    history = make_history(earlier, request.input, target.earlier_param, inputs.tool_texts)
    fitter = _PromptFitter(request, inputs, target, adapter, services, history)
    frame = (target.frame if history.messages_only else None) or fitter.get_frame(history)
    rendered = render_chat(history, request, adapter.honours, fitter.attached, frame)
    prompt: Prompt = rendered.prompt
    if fitter.attached.missing:
        return fitter.prepare_async()
    if not adapter.verbatim:
        if adapter.is_slow(rendered.prompt):
            return fitter.prepare_async()
        prompt = adapter.render(rendered.prompt, fitter.get_now)
    if target.capabilities.context is None or fitter.is_sure_to_fit(prompt):
        return fitter.build(rendered, prompt, None)
    fitter.draft = rendered, prompt
    return fitter.prepare_async()


async def await_prepared(prepared: PreparedPrompt | Awaitable[PreparedPrompt]) -> PreparedPrompt:
    return prepared if isinstance(prepared, PreparedPrompt) else await prepared


async def _open_and_prepare(
    decoded: DecodedRequest, inputs: PromptInputs, target: ModelTarget, services: PromptServices
) -> PreparedPrompt:
    request = decoded.request
    earlier, input_items = await open_last_compaction(
        services.keyring, inputs.tenant, inputs.earlier, request.input, target.earlier_param
    )
    if input_items is not request.input:
        decoded = replace(decoded, request=replace(request, input=[*input_items]))
    return await await_prepared(
        prepare(decoded, replace(inputs, earlier=earlier, compactions_open=True), target, services)
    )


def _select_adapter(decoded: DecodedRequest, target: ModelTarget) -> ModelAdapter:
    """Select the adapter and cache a reusable one for all equal requests, without the input of the first."""
    adapter = make_adapter(decoded.request, target.capabilities, target.served.model)
    if adapter.reusable and decoded.cached is not None:
        target.adapter = make_adapter(decoded.cached.request, target.capabilities, target.served.model)
    return adapter


class _PromptFitter(Struct, eq=False):
    """Renders a request's history so that the prompt and an answer fit into the model's context."""

    request: CreateResponse
    inputs: PromptInputs
    target: ModelTarget
    adapter: ModelAdapter
    services: PromptServices
    history: History = History()
    attached: AttachmentLookup = field(default_factory=AttachmentLookup)
    now: datetime | None = None  # the same time for all renderings
    draft: tuple[RenderedChat, Prompt] | None = None
    shortened: bool = False

    async def prepare_async(self) -> PreparedPrompt:
        return await await_prepared(self.build(*await self._fit()))

    def build(
        self, rendered: RenderedChat, prompt: Prompt, tokens: int | None
    ) -> PreparedPrompt | Awaitable[PreparedPrompt]:
        target, request, tenant = self.target, self.request, self.inputs.tenant
        template = target.template
        if template is None or template.frame is not rendered.frame or prompt is not rendered.prompt:
            template = self._make_template(rendered, prompt)
        generation = replace(template.generation, prompt=prompt)
        if tokens is not None:
            generation = replace(generation, sampling=_set_stops(_limit_sampling(target, tokens), template.output_spec))
        if tenant != DEFAULT_TENANT or not template.is_generic:
            generation = apply_engine_fields(tenant, request, generation)
        output_spec, rules, offered = template.output_spec, template.rules, rendered.offered
        retry_policy = None
        if rules is not None:
            retry_policy = RetryPolicy(
                rules=rules, render_retry=RetryPromptBuilder(rendered.prompt, self.adapter, output_spec, prompt)
            )
        result = PreparedPrompt(
            engine=target.served.engine,
            generation=generation,
            parser=template.parser_type(prompt, output_spec.parser_options),
            parser_options=output_spec.parser_options,
            tool_resolver=ToolCallResolver(offered.offers, request.parallel_tool_calls),
            retry_policy=retry_policy,
            ignored=offered.ignored,
            history=self.history,
            shortened=self.shortened,
            unlisted_servers=offered.unlisted,
            tokens=tokens,
            messages=rendered.prompt.messages,
        )
        return result if rules is None or not template.has_grammars else self._check_grammars(result, rules)

    async def _check_grammars(self, prepared: PreparedPrompt, rules: OutputRules) -> PreparedPrompt:
        await check_grammars(rules, self.request)
        return prepared

    def _make_template(self, rendered: RenderedChat, prompt: Prompt) -> CallTemplate:
        request, target, capabilities, adapter = self.request, self.target, self.target.capabilities, self.adapter
        if rendered.offered.offers and "tools" not in adapter.honours:
            sentence = f"'tools' are not supported by this model on the {target.served.engine.name} engine."
            raise UnsupportedParameter(
                f"{sentence} {capabilities.unsupported_reasons.get('tools', '')}".rstrip(), param="tools"
            )
        output_spec = adapter.make_output_spec(rendered.prompt, prompt)
        rules = find_rules(request, rendered, output_spec.enforced)
        sampling = _set_stops(target.sampling, output_spec)
        generation = GenerationRequest(
            model=target.served.model,
            prompt=rendered.frame.chat,
            sampling=sampling,
            constraint=output_spec.constraint,
            visible_tokens=output_spec.visible_tokens,
            effort=request.reasoning.effort,
            level=capabilities.level,
            buffered=capabilities.can_generate_whole and _can_buffer(request, sampling, output_spec),
            cache_key=request.prompt_cache_key,
            affinity=request.prompt_cache_key or (request.conversation.id if request.conversation else None),
        )
        template = CallTemplate(
            frame=rendered.frame,
            output_spec=output_spec,
            parser_type=load_parser(output_spec.parser),
            generation=generation,
            is_generic=has_no_engine_fields(request),
            rules=rules,
            has_grammars=rules is not None and has_grammars(rules),
        )
        if adapter.reusable and rendered.frame is target.frame and prompt is rendered.prompt:
            target.template = template
        return template

    async def _fit(self) -> FittedPrompt:
        """Load the attachments, render in threads, and truncate if necessary."""
        draft = self.draft
        if draft is None and not self.attached.missing:
            draft = await asyncio.to_thread(self._render_all)
        if draft is None or self.attached.missing:
            await self.services.load_attachments(self.inputs.tenant, self.attached)
            draft = await asyncio.to_thread(self._render_all)
        rendered, prompt = draft
        if self.is_sure_to_fit(prompt):
            return rendered, prompt, None
        context, tokens = self.target.capabilities.context or 0, await self._count_tokens(prompt)
        if tokens < context:
            return rendered, prompt, tokens
        if self.request.truncation == "disabled":
            raise _too_long_error(tokens, context, "Shorten the input, or send truncation: 'auto'.")
        self.shortened = True
        return await self._truncate(self.history, context - _reserve_tokens(self.target.max_tokens, context))

    def is_sure_to_fit(self, prompt: Prompt) -> bool:
        """Whether counting is unnecessary: the engine cannot count, or the prompt fits even at one token per byte."""
        capabilities, context = self.target.capabilities, self.target.capabilities.context
        if context is None or not (capabilities.can_count_tokens or isinstance(prompt, TokenPrompt)):
            return True
        return measure_bytes(prompt) + (self.target.max_tokens or 0) < context

    def _render_all(self) -> tuple[RenderedChat, Prompt]:
        inputs = self.inputs
        self.history = make_history(inputs.earlier, self.request.input, self.target.earlier_param, inputs.tool_texts)
        return self._render(self.history)

    async def _truncate(self, history: History, budget: int) -> tuple[RenderedChat, Prompt, int]:
        """Drop as few of the oldest units as necessary, by binary search: each dropped unit shortens the prompt."""
        low, high = 1, await asyncio.to_thread(count_droppable, history)
        while low < high:
            middle = (low + high) // 2
            _, prompt = await asyncio.to_thread(self._render_truncated, history, middle)
            if await self._count_tokens(prompt) <= budget:
                high = middle
            else:
                low = middle + 1
        rendered, prompt = await asyncio.to_thread(self._render_truncated, history, high)
        tokens = await self._count_tokens(prompt)
        context = self.target.capabilities.context or 0
        if tokens >= context:
            raise _too_long_error(tokens, context, "No item can be dropped: shorten the input.")
        return rendered, prompt, tokens

    def _render_truncated(self, history: History, drop: int) -> tuple[RenderedChat, Prompt]:
        return self._render(drop_oldest(history, drop))

    def _render(self, history: History) -> tuple[RenderedChat, Prompt]:
        rendered = render_chat(history, self.request, self.adapter.honours, self.attached, self.get_frame(history))
        if self.attached.missing:
            return rendered, rendered.prompt
        return rendered, self.adapter.render(rendered.prompt, self.get_now)

    def get_frame(self, history: History) -> PromptFrame:
        """Return the frame; it is cached for all equal requests unless the history declares tools."""
        if declares_tools(history):
            return build_frame(self.request, history, self.services.hosting)
        if self.target.frame is None:
            self.target.frame = build_frame(self.request, history, self.services.hosting)
        return self.target.frame

    def get_now(self) -> datetime:
        self.now = self.now or datetime.now()
        return self.now

    async def _count_tokens(self, prompt: Prompt) -> int:
        if isinstance(prompt, TokenPrompt):
            return len(prompt.tokens)
        served = self.target.served
        return await served.engine.count_tokens(served.model, prompt)


def measure_bytes(prompt: Prompt) -> int:
    """Return the size in bytes, an upper bound of the tokens."""
    match prompt:
        case ChatPrompt():
            return len(msgspec.json.encode(prompt))
        case TextPrompt(segments=segments):
            return sum([len(segment.text.encode("utf-8", "surrogatepass")) for segment in segments])
        case TokenPrompt(tokens=tokens):
            return len(tokens)


def _can_buffer(request: CreateResponse, sampling: Sampling, output_spec: OutputSpec) -> bool:
    """Whether the engine may return the answer in one piece: it is not observed before its end, and no parser stops it.

    Log probabilities are streamed, because one reply with all of them is too large.
    """
    return not (request.stream or request.background or output_spec.parser_options.stop) and sampling.logprobs is None


def _reserve_tokens(max_tokens: int | None, context: int) -> int:
    """Return the tokens that a truncated prompt leaves for the answer."""
    return min(max_tokens or context // 4, context // 2)


def _limit_sampling(target: ModelTarget, tokens: int) -> Sampling:
    """Limit the output tokens to the room beside a prompt of so many tokens."""
    if target.capabilities.context is None:
        return target.sampling
    remaining = target.capabilities.context - tokens
    return replace(
        target.sampling, max_tokens=remaining if target.max_tokens is None else min(target.max_tokens, remaining)
    )


def _set_stops(sampling: Sampling, output_spec: OutputSpec) -> Sampling:
    """Add the model's own stop tokens; drop stop strings that the parser handles."""
    if output_spec.parser_options.stop:
        sampling = replace(sampling, stop=(), include_stop_str_in_output=False)
    return (
        replace(sampling, stop_token_ids=sampling.stop_token_ids + output_spec.stop_token_ids)
        if output_spec.stop_token_ids
        else sampling
    )


def _too_long_error(tokens: int, context: int, remedy: str) -> ContextTooLong:
    limit = f"this model's context holds {context} including the answer"
    return ContextTooLong(f"The input has {tokens} tokens, but {limit}. {remedy}", param="input")
