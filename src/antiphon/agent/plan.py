"""What was settled before a model is called: whom to ask, for what, and who reads the answer."""

from msgspec import Struct

from antiphon.admission import Ticket
from antiphon.agent.declared import Declared
from antiphon.agent.patience import Deadlines
from antiphon.core.prompt import Work
from antiphon.engines.base import Engine
from antiphon.parsers.base import Parser


class Plan(Struct, frozen=True, kw_only=True):
    """For one call of the model."""

    engine: Engine
    work: Work
    parser: Parser
    declared: Declared
    summarises: bool = False  # reasoning goes out as a summary
    ticket: Ticket | None = None
    deadlines: Deadlines = Deadlines()
