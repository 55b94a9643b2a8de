"""Request → PreparedPrompt: render the history, fit it into the model's context, and select the parser.

Where tokens can be counted, a prompt that is too long is a 400, or loses its oldest items with `truncation: auto`.
Otherwise the engine rejects it, and for `truncation: auto` the tokens are estimated, rather too high than too low.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import ParamSpec, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.agent.output_rules import RetryPolicy
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.config.areas import CacheKeyUse, UnservedTools
from antiphon.core.deltas import ToolOutputContent
from antiphon.core.history.history import NO_TOOL_OUTPUTS, History, count_droppable, drop_oldest, make_history
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.core.skills import OfferedSkill
from antiphon.errors import AntiphonError, ContextTooLong, UnsupportedParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import Compaction, InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.content import AttachmentLookup
from antiphon.render.messages import RenderedChat, render_chat, show_skills
from antiphon.render.tools.computer import COMPUTER_KINDS, ComputerDeclaration
from antiphon.render.tools.offered_tools import HostedToolLookup, OfferedTools
from antiphon.service.keyring import Keyring
from antiphon.service.model_io.adapter import ModelAdapter, OutputSpec
from antiphon.service.model_io.served_model import ModelTarget, make_adapter
from antiphon.service.prompting.engine_fields import apply_engine_fields
from antiphon.service.prompting.output_requirements import RetryPromptBuilder, check_grammars, find_rules
from antiphon.service.prompting.prepared_request import PreparedPrompt, estimate_tokens, flatten_chat, measure_bytes

P = ParamSpec("P")
T = TypeVar("T")

# called with the tenant; afterwards no source is missing
LoadAttachments = Callable[[str, AttachmentLookup], Awaitable[None]]


class PromptInputs(Struct, frozen=True):
    """Inputs of a prompt besides the request."""

    tenant: str
    earlier: Sequence[InputItem] = ()  # items before the request's input
    # tool results that are not part of their items, by item id
    tool_texts: Mapping[str, ToolOutputContent] = NO_TOOL_OUTPUTS
    skills: tuple[OfferedSkill, ...] = ()


class PromptServices(Struct, frozen=True):
    """Services and settings of the server that rendering needs."""

    load_attachments: LoadAttachments
    hosting: HostedToolLookup
    keyring: Keyring
    unserved_tools: UnservedTools = "auto"
    cache_key_use: CacheKeyUse = "route"


MAX_INLINE_ITEMS = 500  # more items are rendered in a thread, at about 25 µs each


async def prepare(
    decoded: DecodedRequest, inputs: PromptInputs, target: ModelTarget, services: PromptServices
) -> PreparedPrompt:
    """Render the prompt of a request and choose how its output is read."""
    request, inputs = await _open_compactions(decoded.request, inputs, target, services.keyring)
    adapter = make_adapter(request, target.capabilities, target.served.model)
    return await _PromptFitter(request, inputs, target, adapter, services).prepare()


async def _open_compactions(
    request: CreateResponse, inputs: PromptInputs, target: ModelTarget, keyring: Keyring
) -> tuple[CreateResponse, PromptInputs]:
    """Decrypt the last compaction, which stands for everything before it."""
    if Compaction not in map(type, chain(inputs.earlier, request.input)):
        return request, inputs
    earlier, input_items = await keyring.open_last_compaction(
        inputs.tenant, inputs.earlier, request.input, target.earlier_param
    )
    return replace(request, input=[*input_items]), replace(inputs, earlier=earlier)


class _PromptFitter(Struct, eq=False):
    """Renders a request's history so that the prompt and an answer fit into the model's context."""

    request: CreateResponse
    inputs: PromptInputs
    target: ModelTarget
    adapter: ModelAdapter
    services: PromptServices
    attached: AttachmentLookup = field(default_factory=AttachmentLookup)
    now: datetime | None = None  # the same time for all renderings

    async def prepare(self) -> PreparedPrompt:
        """Load the attachments, render, and truncate if necessary."""
        earlier, texts = self.inputs.earlier, self.inputs.tool_texts
        history = await self._run(make_history, earlier, self.request.input, self.target.earlier_param, texts)
        chat = await self._run(self._render_chat, history)
        self._check_tools(chat.offered)
        if self.attached.missing:
            self.attached.defers_corrections = self.target.capabilities.corrects_images
            await self.services.load_attachments(self.inputs.tenant, self.attached)
            chat = await self._run(self._render_chat, history)
        prompt, tokens, shortened = await self._render(chat), None, False
        if not self._is_sure_to_fit(prompt):
            context, tokens = self._context, await self._count_tokens(prompt)
            if tokens >= context:
                if self.request.truncation == "disabled":
                    raise _too_long_error(tokens, context, "Shorten the input, or send truncation: 'auto'.")
                shortened = True
                chat, prompt, tokens = await self._truncate(history, context)
        counted = tokens if self._can_count(prompt) else None
        return replace(await self._build(chat, prompt, counted), history=history, shortened=shortened)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, in a thread if there are many items."""
        if len(self.inputs.earlier) + len(self.request.input) <= MAX_INLINE_ITEMS:
            return function(*args, **kwargs)
        return await asyncio.to_thread(function, *args, **kwargs)

    def _render_chat(self, history: History) -> RenderedChat:
        chat = render_chat(history, self.request, self.adapter.honours, self.attached, self.services.hosting)
        return show_skills(chat, self.inputs.skills) if self.inputs.skills else chat

    async def _render(self, chat: RenderedChat) -> Prompt:
        if self.adapter.is_slow(chat.prompt):
            return await asyncio.to_thread(self.adapter.render, chat.prompt, self._get_now)
        return self.adapter.render(chat.prompt, self._get_now)

    async def _build(self, chat: RenderedChat, prompt: Prompt, tokens: int | None) -> PreparedPrompt:
        """Build the call of a prompt that fits. `tokens`: of the prompt, if they were counted."""
        target, request, offered = self.target, self.request, chat.offered
        output_spec = self.adapter.make_output_spec(chat.prompt, prompt)
        if (rules := find_rules(request, chat, output_spec.enforced)) is not None:
            await check_grammars(rules, request)
        retry_prompts = RetryPromptBuilder(chat.prompt, self.adapter, output_spec, prompt)
        return PreparedPrompt(
            engine=target.served.engine,
            generation=self._make_generation(prompt, tokens, output_spec),
            parser=output_spec.parser(prompt, output_spec.parser_options),
            parser_options=output_spec.parser_options,
            tool_resolver=ToolCallResolver(offered.offers, request.parallel_tool_calls),
            retry_policy=RetryPolicy(rules=rules, render_retry=retry_prompts),
            ignored=(*offered.ignored, *self._list_ignored()),
            unlisted_servers=offered.unlisted,
            tokens=tokens,
            messages=chat.prompt.messages,
        )

    def _list_ignored(self) -> Sequence[str]:
        is_ignored = self.request.reasoning.context == "all_turns" and not self.adapter.renders_old_reasoning
        return ("reasoning.context",) if is_ignored else ()

    def _check_tools(self, offered: OfferedTools) -> None:
        if offered.setup_hints and self.services.unserved_tools != "ignore":
            self._reject_unserved_tools(offered.setup_hints)
        if offered.offers and "tools" not in self.adapter.honours:
            reason = self.target.capabilities.unsupported_reasons.get("tools", "")
            sentence = f"'tools' are not supported by this model on the {self.target.served.engine.name} engine."
            raise UnsupportedParameter(f"{sentence} {reason}".rstrip(), param="tools")

        if "input_image" not in self.adapter.honours and any(
            offer.kind in COMPUTER_KINDS for offer in offered.offers.values()
        ):
            self._reject_computer()

    def _reject_computer(self) -> None:
        """Reject a computer for a model that could not see its screenshots."""
        reason = self.target.capabilities.unsupported_reasons.get("input_image", "The model does not accept images.")
        declared = [n for n, tool in enumerate(self.request.tools) if isinstance(tool, ComputerDeclaration)]
        param = f"tools[{declared[0]}]" if declared else "tools"
        raise UnsupportedParameter(f"A computer needs a model that sees its screenshots. {reason}", param=param)

    def _reject_unserved_tools(self, setup_hints: Mapping[str, str]) -> None:
        """Reject declared tools that this server does not run.

        Codex declares web_search in every request, so by default that tool is only reported as ignored.
        """
        refuses_search = self.services.unserved_tools == "refuse"
        for index, tool in enumerate(self.request.tools):
            kind = str(tool.__struct_config__.tag)
            if kind in setup_hints and (refuses_search or not kind.startswith("web_search")):
                raise _unserved_tool_error(kind, index, setup_hints[kind])

    def _make_generation(self, prompt: Prompt, tokens: int | None, output_spec: OutputSpec) -> GenerationRequest:
        request, target = self.request, self.target
        sampling = target.sampling if tokens is None else _limit_sampling(target, tokens)
        sampling = _set_stops(sampling, output_spec)
        generation = GenerationRequest(
            model=target.served.model,
            prompt=prompt,
            sampling=sampling,
            constraint=output_spec.constraint,
            visible_tokens=output_spec.visible_tokens,
            effort=request.reasoning.effort,
            level=target.capabilities.level,
            buffered=target.capabilities.can_generate_whole and _can_buffer(request, sampling, output_spec),
            cache_key=request.prompt_cache_key,
            affinity=request.prompt_cache_key or (request.conversation.id if request.conversation else None),
        )
        return apply_engine_fields(self.inputs.tenant, request, generation, self.services.cache_key_use)

    def _is_sure_to_fit(self, prompt: Prompt) -> bool:
        """Return whether counting is needless: the engine has to check, or the prompt fits at one token per byte."""
        context = self.target.capabilities.context
        if context is None or not (self._can_count(prompt) or self.request.truncation == "auto"):
            return True
        return measure_bytes(prompt) + (self.target.max_tokens or 0) < context

    @property
    def _context(self) -> int:
        """The context size of a model for which it is known."""
        return self.target.capabilities.context or 0

    def _can_count(self, prompt: Prompt) -> bool:
        return self.target.capabilities.can_count_tokens or isinstance(prompt, TokenPrompt)

    async def _truncate(self, history: History, context: int) -> tuple[RenderedChat, Prompt, int]:
        """Drop as few of the oldest units as necessary, by binary search: each dropped unit shortens the prompt."""
        # the answer needs the other tokens
        budget = context - min(self.target.max_tokens or context // 4, context // 2)
        low, high = 1, await asyncio.to_thread(count_droppable, history)
        while low < high:
            middle = (low + high) // 2
            _, prompt = await asyncio.to_thread(self._render_truncated, history, middle)
            if await self._count_tokens(prompt) <= budget:
                high = middle
            else:
                low = middle + 1
        chat, prompt = await asyncio.to_thread(self._render_truncated, history, high)
        tokens = await self._count_tokens(prompt)
        if tokens >= context and self._can_count(prompt):  # an estimate may be too high
            raise _too_long_error(tokens, context, "No item can be dropped: shorten the input.")
        return chat, prompt, tokens

    def _render_truncated(self, history: History, drop: int) -> tuple[RenderedChat, Prompt]:
        chat = self._render_chat(drop_oldest(history, drop))
        return chat, self.adapter.render(chat.prompt, self._get_now)

    def _get_now(self) -> datetime:
        self.now = self.now or datetime.now()
        return self.now

    async def _count_tokens(self, prompt: Prompt) -> int:
        """Count the tokens.

        Where the engine cannot count those of a chat, its tokenizer counts those of the texts. Without a tokenizer, a
        third is added to the estimate: texts in other languages than English, and code, have shorter tokens.
        """
        if isinstance(prompt, TokenPrompt):
            return len(prompt.tokens)
        served, capabilities = self.target.served, self.target.capabilities
        if capabilities.can_count_tokens:
            return await served.engine.count_tokens(served.model, prompt)
        estimate = estimate_tokens(prompt) * 4 // 3
        if isinstance(prompt, ChatPrompt) and "tokenize" in capabilities.tasks and estimate < 4 * self._context:
            text, others = flatten_chat(prompt)
            with suppress(AntiphonError):  # not every version of an engine has a tokenizer
                return others + len(
                    await served.engine.tokenize(served.model, TextPrompt((Segment(text.decode(), False),)))
                )
        return estimate


def _can_buffer(request: CreateResponse, sampling: Sampling, output_spec: OutputSpec) -> bool:
    """Return whether the engine may answer in one piece: nobody observes it before its end, and no parser stops it.

    Log probabilities are streamed, because one reply with all of them is too large.
    """
    return not (request.stream or request.background or output_spec.parser_options.stop) and sampling.logprobs is None


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


def _unserved_tool_error(kind: str, index: int, setup_hint: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"This server does not run {kind} tools. {setup_hint or 'No setting enables them.'} Omit the tool, or let the "
        "operator set --unserved-tools ignore.",
        param=f"tools[{index}]",
    )


def _too_long_error(tokens: int, context: int, remedy: str) -> ContextTooLong:
    limit = f"this model's context holds {context} including the answer"
    return ContextTooLong(f"The input has {tokens} tokens, but {limit}. {remedy}", param="input")
