"""What was settled before a model is called: whom to ask, for what, and who reads the answer."""

from collections.abc import Callable

from msgspec import Struct

from antiphon.admission import Ticket
from antiphon.agent.output_rules import Insistence
from antiphon.agent.run_tracer import Witness
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_resolver import Declared
from antiphon.core.encrypted_reasoning import Seal
from antiphon.core.prompt import Work
from antiphon.engines.base import Engine
from antiphon.parsers.base import Parser
from antiphon.tools.base import Rewriter


class Plan(Struct, frozen=True, kw_only=True):
    """For one call of the model."""

    engine: Engine
    work: Work
    parser: Parser
    declared: Declared
    summarises: bool = False  # reasoning goes out as a summary
    seal: Seal | None = None  # reasoning goes out sealed too
    insists: Insistence | None = None  # on what; None: whatever the model says is told
    ticket: Ticket | None = None
    rewriter: Rewriter | None = None  # of what is said; None: it is told as it is
    deadlines: Deadlines = Deadlines()
    watch: Callable[[str], Witness] | None = None  # of the response with this id; None: nobody wants to know
    warms: bool = False  # the engine is to read the prompt, and nothing is told of what it says
