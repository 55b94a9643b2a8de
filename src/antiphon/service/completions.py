"""Completions, without a transport: every prompt as it is, answered in the words of this API by one exchange.

What is wrong with a request is raised before anything is handed out, in the names of this API.
"""

from time import time

from msgspec.structs import replace

from antiphon.core.dialects.chat_extensions import Wishes
from antiphon.core.dialects.completions.emitter import CompletionEmitter, CompletionManner
from antiphon.core.dialects.completions.request import AskedCompletion
from antiphon.core.dialects.dialect import Head
from antiphon.core.prompt import TextPrompt
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.ids import dashed_id
from antiphon.service.access.service_tiers import told
from antiphon.service.chat import Opened, prompt_tokens
from antiphon.service.planning.apply_extensions import grant
from antiphon.service.planning.planner import Planner, Settled
from antiphon.service.planning.validation import unsupported
from antiphon.service.prompting.prepared_request import repeated
from antiphon.service.runs.completion_runs import Exchanges


class Completions:
    def __init__(self, planner: Planner, exchanges: Exchanges) -> None:
        self._planner = planner
        self._exchanges = exchanges

    async def create(self, tenant: str, asked: AskedCompletion) -> Opened:
        try:
            settled = await self._planner.settle_prompts(tenant, asked.decoded, asked.prompts)
            wishes = _wishes(settled[0], asked)
            granted = [grant(each, wishes, tenant) for each in settled]
            return await self._opened(granted, asked)
        except AntiphonError as error:
            raise asked.names.told(error) from None

    async def _opened(self, settled: list[Settled], asked: AskedCompletion) -> Opened:
        tier = told(asked.request.service_tier, settled[0].decoded.request.service_tier)
        head = Head(id=dashed_id("cmpl"), created=int(time()), model=settled[0].served.name, service_tier=tier)
        manner = await _manner(settled, asked)
        if manner.wanted < manner.calls:
            settled = [_scored(each) for each in settled]
        calls = [call for each in settled for call in repeated(each, manner.calls)]
        exchange = self._exchanges.open(calls, CompletionEmitter(head, manner), asked.names.told)
        return Opened(exchange, settled[0].ignored)


async def _manner(settled: list[Settled], asked: AskedCompletion) -> CompletionManner:
    request = asked.request
    options = request.stream_options if request.stream else None
    running = options is not None and options.continuous_usage_stats
    return CompletionManner(
        prompts=len(settled),
        calls=max(request.best_of or 1, asked.wishes.choices),
        wanted=asked.wishes.choices,
        usage=not request.stream or (options is not None and options.include_usage),
        running=sum([await prompt_tokens(each) for each in settled]) if running else None,
        top=request.logprobs,
        echoes=[await _text(each) for each in settled] if request.echo else (),
    )


def _wishes(settled: Settled, asked: AskedCompletion) -> Wishes:
    """With the log probabilities of a prompt that is to be repeated with them."""
    request, wishes = asked.request, asked.wishes
    if not request.echo or request.logprobs is None:
        return wishes
    if "prompt_logprobs" not in settled.able.honours:
        raise unsupported("prompt_logprobs", settled.able, settled.served.engine.name, "echo")
    return replace(wishes, prompt_logprobs=max(request.logprobs, wishes.prompt_logprobs or 0))


def _scored(settled: Settled) -> Settled:
    """Whose answers can be compared."""
    if "top_logprobs" not in settled.able.honours:
        raise unsupported("top_logprobs", settled.able, settled.served.engine.name, "best_of")
    prepared = settled.prepared
    sampling = replace(prepared.work.sampling, logprobs=prepared.work.sampling.logprobs or 0)
    return replace(settled, prepared=replace(prepared, work=replace(prepared.work, sampling=sampling)))


async def _text(settled: Settled) -> str:
    prompt, served = settled.prepared.work.prompt, settled.served
    if isinstance(prompt, TextPrompt):
        return "".join([segment.text for segment in prompt.segments])
    if "detokenize" not in settled.able.does:
        raise UnsupportedParameter(
            f"The {served.engine.name} engine does not tell what tokens mean: send the prompt as text.", param="echo"
        )
    tokens = getattr(prompt, "tokens", ())
    return await served.engine.detokenize(served.model, tokens)
