"""Tokenization and token counting, independent of the transport.

`Tokenization` converts texts and chats to tokens and back on engines that support it. A chat is rendered as for a chat
completion, so its tokens are those that the same completion would be charged for.

`InputTokenCounter` counts the tokens of a request without calling a model; the number equals the usage that the same
request would report. It rejects every request that a create would reject. It writes nothing and occupies no model slot.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.admission import Admission
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.prompt import Prompt, Segment, TextPrompt
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.bodies.tokens import Detokenize, Tokenize, Tokenized
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.engine_tasks import EngineTasks, TaskTarget
from antiphon.service.planning.planner import Planner

MAX_TOKENIZE_CALLS = 16  # concurrent engine calls; engines serve these beside their generations
MAX_TOKEN_STRINGS = 10_000  # tokens of one request; each one costs an engine call


class Tokenization:
    def __init__(self, tasks: EngineTasks, planner: Planner, queue: int) -> None:
        """`queue`: requests that may wait for admission."""
        self._tasks = tasks
        self._planner = planner
        self._admission = Admission(MAX_TOKENIZE_CALLS, queue)

    async def tokenize(self, tenant: str, request: Tokenize) -> Tokenized:
        target = await self._tasks.find(request.model, "tokenize")
        prompt = TextPrompt((Segment(request.prompt, control=True),))
        return await self._tokenize(tenant, target, prompt, request)

    async def tokenize_chat(self, tenant: str, request: Tokenize, chat: ChatRequest) -> tuple[Tokenized, list[str]]:
        """Also returns the names of accepted fields that have no effect."""
        try:
            prepared_request = await self._planner.plan(tenant, chat.decoded)
            target = await self._tasks.find(chat.decoded.request.model, "tokenize")
            tokenized = await self._tokenize(tenant, target, prepared_request.prepared.generation.prompt, request)
        except AntiphonError as error:
            raise chat.names.translate_error(error) from None
        return tokenized, chat.names.translate_ignored(prepared_request.ignored, chat.decoded.ignored)

    async def detokenize(self, tenant: str, request: Detokenize) -> str:
        target = await self._tasks.find(request.model, "detokenize")
        with self._admission.enter(tenant) as ticket:
            await ticket.wait_turn()
            return await target.served.engine.detokenize(target.served.model, request.tokens)

    async def _tokenize(self, tenant: str, target: TaskTarget, prompt: Prompt, request: Tokenize) -> Tokenized:
        served = target.served
        with self._admission.enter(tenant) as ticket:
            await ticket.wait_turn()
            tokens = await served.engine.tokenize(served.model, prompt, request.add_special_tokens)
            strings = await _spell_tokens(target, tokens) if request.return_token_strs else None
        return Tokenized(
            count=len(tokens), max_model_len=target.capabilities.context, tokens=list(tokens), token_strs=strings
        )


async def _spell_tokens(target: TaskTarget, tokens: Sequence[int]) -> list[str]:
    """Detokenize each distinct token separately. A part of a character becomes the replacement character."""
    if len(tokens) > MAX_TOKEN_STRINGS:
        raise InvalidValue(
            f"'return_token_strs' is limited to {MAX_TOKEN_STRINGS} tokens; the prompt has {len(tokens)}.",
            param="return_token_strs",
        )
    served = target.served
    texts = {token: await served.engine.detokenize(served.model, [token]) for token in dict.fromkeys(tokens)}
    return [texts[token] for token in tokens]


MAX_COUNT_CALLS = 16  # concurrent counts; engines serve these beside their generations


class InputTokenCounter:
    def __init__(self, planner: Planner, queue: int) -> None:
        """`queue`: requests that may wait for admission."""
        self._planner = planner
        self._admission = Admission(MAX_COUNT_CALLS, queue)

    async def count(self, tenant: str, decoded: DecodedRequest) -> tuple[int, list[str]]:
        """Count the input tokens; `stream`, `background` and `store` do not affect the result.

        Also returns the names of accepted fields that have no effect.
        """
        request = replace(decoded.request, stream=False, background=False, store=False)
        with self._admission.enter(tenant) as ticket:
            await ticket.wait_turn()
            prepared_request = await self._planner.plan(tenant, replace(decoded, request=request))
            tokens = await prepared_request.count_tokens()
        if tokens is None:
            raise UnsupportedParameter(
                "The tokens of this model's prompts cannot be counted: the"
                f" {prepared_request.served.engine.name} engine cannot count tokens.",
                param="model",
            )
        # no model queue is entered, so the tier has no effect
        idle = [] if decoded.request.service_tier in (None, "auto", "default") else ["service_tier"]
        return tokens, [*prepared_request.ignored, *idle]
