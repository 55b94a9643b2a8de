"""Texts and chats into tokens and back, without a transport, for engines that tell.

A chat is rendered in the one way that there is, so its tokens are those that the same chat completion would cost.

How many tokens a prompt has, without asking a model: the number that the usage of the same request would tell.

Everything that a create would refuse is refused here too. Nothing is written, and no place at a model is taken.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Admission
from antiphon.core.dialects.chat.request import AskedChat
from antiphon.core.prompt import Prompt, Segment, TextPrompt
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.bodies.tokens import Detokenize, Tokenize, Tokenized
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.engine_tasks import Doer, Doing
from antiphon.service.planning.planner import Planner, Settled
from antiphon.service.prompting.token_count import counted

AT_ONCE = 16  # requests under way: engines have few ears for this beside their work
SPELLED = 10_000  # tokens of one request; each is asked for by itself


class Counted(Struct, frozen=True):
    tokenized: Tokenized
    ignored: list[str]


class Tokens:
    def __init__(self, doing: Doing, planner: Planner, queue: int) -> None:
        """`queue`: how many may wait for their turn."""
        self._doing = doing
        self._planner = planner
        self._admission = Admission(AT_ONCE, queue)

    async def tokenize(self, tenant: str, asked: Tokenize) -> Tokenized:
        doer = await self._doing.find(asked.model, "tokenize")
        prompt = TextPrompt((Segment(asked.prompt, control=True),))
        return await self._tokenized(tenant, doer, prompt, asked)

    async def tokenize_chat(self, tenant: str, asked: Tokenize, chat: AskedChat) -> Counted:
        try:
            settled = await self._planner.settle(tenant, chat.decoded)
            doer = await self._doing.find(chat.decoded.request.model, "tokenize")
            tokenized = await self._tokenized(tenant, doer, settled.prepared.work.prompt, asked)
        except AntiphonError as error:
            raise chat.names.told(error) from None
        return Counted(tokenized, settled.ignored)

    async def detokenize(self, tenant: str, asked: Detokenize) -> str:
        doer = await self._doing.find(asked.model, "detokenize")
        with self._admission.enter(tenant) as ticket:
            await ticket.ready()
            return await doer.served.engine.detokenize(doer.served.model, asked.tokens)

    async def _tokenized(self, tenant: str, doer: Doer, prompt: Prompt, asked: Tokenize) -> Tokenized:
        served = doer.served
        with self._admission.enter(tenant) as ticket:
            await ticket.ready()
            tokens = await served.engine.tokenize(served.model, prompt, asked.add_special_tokens)
            strings = await _spelled(doer, tokens) if asked.return_token_strs else None
        return Tokenized(count=len(tokens), max_model_len=doer.able.context, tokens=list(tokens), token_strs=strings)


async def _spelled(doer: Doer, tokens: Sequence[int]) -> list[str]:
    """Each by itself; a token that is half of a character is shown as what cannot be shown."""
    if len(tokens) > SPELLED:
        raise InvalidValue(
            f"'return_token_strs' is for at most {SPELLED} tokens; these are {len(tokens)}.", param="return_token_strs"
        )
    served = doer.served
    spelled = {token: await served.engine.detokenize(served.model, [token]) for token in dict.fromkeys(tokens)}
    return [spelled[token] for token in tokens]


MAX_COUNTS = 16  # counts under way: engines have few ears for this beside their work


class InputTokens(Struct, frozen=True):
    tokens: int
    ignored: list[str]  # names of fields that change nothing


class Counting:
    def __init__(self, planner: Planner, queue: int) -> None:
        """`queue`: how many may wait for their turn."""
        self._planner = planner
        self._admission = Admission(MAX_COUNTS, queue)

    async def count(self, tenant: str, decoded: Decoded) -> InputTokens:
        """How the answer would be delivered and whether it would be kept has no say in it."""
        request = replace(decoded.request, stream=False, background=False, store=False)
        with self._admission.enter(tenant) as ticket:
            await ticket.ready()
            settled = await self._planner.settle(tenant, replace(decoded, request=request))
            return InputTokens(await _tokens(settled), [*settled.ignored, *_idle(decoded)])


def _idle(decoded: Decoded) -> list[str]:
    """Nobody waits for a place at a model here."""
    return [] if decoded.request.service_tier in (None, "auto", "default") else ["service_tier"]


async def _tokens(settled: Settled) -> int:
    tokens = await counted(settled.prepared, settled.served, settled.able)
    if tokens is None:
        raise UnsupportedParameter(
            "The tokens of this model's prompts cannot be counted: the"
            f" {settled.served.engine.name} engine does not tell.",
            param="model",
        )
    return tokens
