"""Chat completions, without a transport: settled as any request, answered in their own words by an exchange.

What is wrong with a request is raised before anything is handed out, in the names of this API.
"""

from functools import partial
from time import time

from msgspec import Struct

from antiphon.agent.completion_run import Exchange
from antiphon.core.dialects.chat.emitter import ChatEmitter, Manner
from antiphon.core.dialects.chat.request import AskedChat
from antiphon.core.dialects.dialect import Head
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.ids import dashed_id, new_id
from antiphon.service.access.service_tiers import told
from antiphon.service.planning.apply_extensions import grant
from antiphon.service.planning.planner import Planner, Settled
from antiphon.service.prompting.prepared_request import repeated
from antiphon.service.runs.completion_runs import Exchanges

_RUNNING = "stream_options.continuous_usage_stats"


class Opened(Struct, frozen=True):
    """Whoever gets the exchange drives it or waits for its result, and leaves it in any case."""

    exchange: Exchange
    ignored: list[str]


class Chat:
    def __init__(self, planner: Planner, exchanges: Exchanges) -> None:
        self._planner = planner
        self._exchanges = exchanges

    async def create(self, tenant: str, asked: AskedChat) -> Opened:
        try:
            settled = grant(await self._planner.settle(tenant, asked.decoded), asked.wishes, tenant)
            return await self._opened(settled, asked)
        except AntiphonError as error:
            raise asked.names.told(error) from None

    async def _opened(self, settled: Settled, asked: AskedChat) -> Opened:
        request = asked.request
        head = Head(
            id=dashed_id("chatcmpl"),
            created=int(time()),
            model=settled.served.name,
            service_tier=told(request.service_tier, settled.decoded.request.service_tier),
        )
        emitter = ChatEmitter(head, await _manner(settled, asked), partial(new_id, "call"))
        calls = repeated(settled, asked.wishes.choices)
        return Opened(self._exchanges.open(calls, emitter, asked.names.told), settled.ignored)


async def _manner(settled: Settled, asked: AskedChat) -> Manner:
    request, options = asked.request, asked.request.stream_options
    streamed = options if request.stream else None
    return Manner(
        choices=asked.wishes.choices,
        usage=not request.stream or (streamed is not None and streamed.include_usage),
        running=await prompt_tokens(settled) if streamed is not None and streamed.continuous_usage_stats else None,
        reasoning=request.include_reasoning,
        legacy=request.functions is not None,
        obfuscates=streamed is not None and streamed.include_obfuscation,
    )


async def prompt_tokens(settled: Settled) -> int:
    """For those who want to be told before the engine tells."""
    if (known := settled.prepared.tokens) is not None:
        return known
    served = settled.served
    if not settled.able.counts:
        raise UnsupportedParameter(
            f"The {served.engine.name} engine counts a prompt's tokens only at the end.", param=_RUNNING
        )
    return await served.engine.count(served.model, settled.prepared.work.prompt)
