"""Retries a model call whose output violates the rules, with feedback; after the last retry the response fails.

retry = OutputRetry(policy)
… an attempt, fed through `retry.gate` …
await retry.validate(is_cut)
… emit what `retry.gate.release()` returns …
call = await retry.prepare_retry(call)    the next attempt; None: the output is valid
"""

import asyncio
from typing import Literal

from msgspec.structs import replace

from antiphon.agent.model_call import ModelCall
from antiphon.agent.output_gate import Emitted, OutputGate
from antiphon.agent.output_rules import Reason, RetryPolicy, Violation
from antiphon.core.prompt import GenerationRequest, Prompt
from antiphon.errors import AntiphonError, InvalidCall, InvalidOutput

SEED_COUNT = 2**32 - 1  # seeds that every engine accepts
MIN_OUTPUT_TOKENS = 256  # lower bound for the answer of a retry, unless the client's own limit is lower

RetryOutcome = Literal["mended", "asked_again", "failed"]


class OutputRetry:
    """All attempts of one model call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._retries_remaining = policy.max_retries
        self._emitted = Emitted()
        self._is_slow = any(rule.lark is not None for rule in policy.rules.tools.values())
        self.gate = OutputGate(policy.rules, self._emitted)
        self.outcomes: list[tuple[Reason, RetryOutcome]] = []

    async def validate(self, is_cut: bool) -> None:
        output = self.gate.output
        if self._is_slow:
            await asyncio.to_thread(output.validate, is_cut)
        else:
            output.validate(is_cut)
        if output.violation is None:
            self.outcomes += [(reason, "mended") for reason in output.repairs]

    async def prepare_retry(self, call: ModelCall) -> ModelCall | None:
        """Return the model call of the next attempt, or None if the output is valid.

        Raises the error of the last attempt when no retries remain.
        """
        if (violation := self.gate.output.violation) is None:
            return None
        if violation.is_final or not self._retries_remaining:
            self.outcomes.append((violation.reason, "failed"))
            raise _to_error(violation)
        self._retries_remaining -= 1
        self.outcomes.append((violation.reason, "asked_again"))
        prompt, parser = await self._policy.render_retry(violation)
        self.gate = OutputGate(self._policy.rules, self._emitted, is_retry=True)
        return replace(
            call,
            generation=_retry_generation(call.generation, prompt, violation),
            parser=parser,
            resolver=call.resolver.copy_for_retry(),
        )


def _retry_generation(generation: GenerationRequest, prompt: Prompt, violation: Violation) -> GenerationRequest:
    """Return the generation request of a retry.

    The seed changes, or a deterministic model could repeat its output. The output limit shrinks by the added feedback:
    no token is shorter than a byte.
    """
    sampling = generation.sampling
    seed = None if sampling.seed is None else (sampling.seed + 1) % SEED_COUNT
    limit, added = sampling.max_tokens, len(violation.output.encode()) + len(violation.feedback.encode())
    max_tokens = None if limit is None else max(limit - added, min(limit, MIN_OUTPUT_TOKENS))
    return replace(generation, prompt=prompt, sampling=replace(sampling, seed=seed, max_tokens=max_tokens))


def _to_error(violation: Violation) -> AntiphonError:
    match violation.reason:
        case "format":
            return InvalidOutput("The model did not answer in the requested format.")
        case "no_call":
            return InvalidCall("The model returned no tool call although tool_choice requires one.")
        case "arguments":
            return InvalidCall(f"The model called a tool with invalid arguments. {violation.feedback}")
