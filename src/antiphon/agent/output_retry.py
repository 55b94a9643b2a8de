"""A model that did not do what was asked of it is asked again, a few times, and told why; then the response fails.

insisting = Insisting(insistence)
… a try, fed through `insisting.sieve` …
await insisting.judge(cut)
… what `insisting.sieve.release()` gives is told …
plan = await insisting.next(plan)       of the next try; None: all is well
"""

import asyncio
from typing import Literal

from msgspec.structs import replace

from antiphon.agent.model_call import Plan
from antiphon.agent.output_gate import Sieve, Told
from antiphon.agent.output_rules import Insistence, Misfit, Reason
from antiphon.core.prompt import Prompt, Work
from antiphon.errors import AntiphonError, InvalidCall, InvalidOutput

SEEDS = 2**32 - 1  # seeds that every engine takes
LEAST_ROOM = 256  # tokens of an answer, unless the client wanted fewer

Outcome = Literal["mended", "asked_again", "failed"]


class Insisting:
    """Over all tries of one call of a model."""

    def __init__(self, insistence: Insistence) -> None:
        self._insistence = insistence
        self._left = insistence.tries
        self._told = Told()
        self._slow = any(rule.lark is not None for rule in insistence.rules.tools.values())
        self.sieve = Sieve(insistence.rules, self._told)
        self.outcomes: list[tuple[Reason, Outcome]] = []

    async def judge(self, cut: bool) -> None:
        if self._slow:
            await asyncio.to_thread(self.sieve.judge, cut)
        else:
            self.sieve.judge(cut)
        if self.sieve.misfit is None:
            self.outcomes += [(reason, "mended") for reason in self.sieve.mended]

    async def next(self, plan: Plan) -> Plan | None:
        """The plan of another try, if there has to be one. Raises what is left to say when there were enough."""
        if (misfit := self.sieve.misfit) is None:
            return None
        if misfit.final or not self._left:
            self.outcomes.append((misfit.reason, "failed"))
            raise _failed(misfit)
        self._left -= 1
        self.outcomes.append((misfit.reason, "asked_again"))
        prompt, parser = await self._insistence.again(misfit)
        self.sieve = Sieve(self._insistence.rules, self._told, again=True)
        return replace(plan, work=_asked(plan.work, prompt, misfit), parser=parser, declared=plan.declared.again())


def insisting(plan: Plan) -> Insisting | None:
    return None if plan.insists is None else Insisting(plan.insists)


def _asked(work: Work, prompt: Prompt, misfit: Misfit) -> Work:
    """With another seed, or a model that was told nothing new would say the same again; and with room for what is told,
    of which no token is shorter than a byte."""
    sampling = work.sampling
    seed = None if sampling.seed is None else (sampling.seed + 1) % SEEDS
    most, told = sampling.max_tokens, len(misfit.said.encode()) + len(misfit.complaint.encode())
    least = None if most is None else max(most - told, min(most, LEAST_ROOM))
    return replace(work, prompt=prompt, sampling=replace(sampling, seed=seed, max_tokens=least))


def _failed(misfit: Misfit) -> AntiphonError:
    match misfit.reason:
        case "format":
            return InvalidOutput("The model did not answer in the form that was asked for.")
        case "no_call":
            return InvalidCall("The model was to call a tool, and did not.")
        case "arguments":
            return InvalidCall(f"The model called a tool wrongly. {misfit.complaint}")
