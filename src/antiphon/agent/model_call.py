"""A prepared model call: the engine, the generation request, and the parser of the output."""

from collections.abc import Callable

from msgspec import Struct

from antiphon.admission import Ticket
from antiphon.agent.output_rules import RetryPolicy
from antiphon.agent.run_tracer import RunTracer
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.prompt import GenerationRequest
from antiphon.engines.base import Engine
from antiphon.parsers.base import Parser
from antiphon.tools.base import Rewriter


class ModelCall(Struct, frozen=True, kw_only=True):
    """Everything needed for one call of the model."""

    engine: Engine
    generation: GenerationRequest
    parser: Parser
    resolver: ToolCallResolver
    summarise_reasoning: bool = False  # emit reasoning as a summary
    encrypt_reasoning: Encrypt | None = None  # also emit reasoning encrypted; None: not requested
    retry_policy: RetryPolicy | None = None  # rules for the output and retries; None: no rules
    ticket: Ticket | None = None
    rewriter: Rewriter | None = None  # rewrites the output; None: unchanged
    timeouts: Timeouts = Timeouts()
    new_tracer: Callable[[str], RunTracer] | None = None  # creates the tracer for a response id; None: not traced
    is_warmup: bool = False  # the engine only processes the prompt; its output is discarded
