"""A course of the tests' own: its tools do as they are told, and its model is the fake engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from antiphon.agent.model_call import Plan
from antiphon.agent.tool_resolver import Declared
from antiphon.agent.turn_policy import ClientCall, ClientOutput, Floor, Sofar, Step
from antiphon.core.deltas import Opened, Ran, Said, ServerItem
from antiphon.engines.fake import FakeEngine
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.builtin_items import McpProtocolError, SearchAction
from antiphon.protocol.types.items import McpCall, McpListTools, OutputItem, WebSearchCall
from antiphon.render.tools.declarations import Offer
from antiphon.tools.base import Rewriter, Tell, Use, Used
from tests.agent.run_endings import WORK

OFFERS = {
    "srv__add": Offer("mcp", "add", "srv"),
    "srv__drop": Offer("mcp", "drop", "srv", approval=True),
    "look": Offer("web_search", "look"),
    "mine": Offer("function", "mine"),
}

Doing = Callable[[Use], Awaitable[Used]]


async def adds(use: Use) -> Used:
    return Used(
        item=McpCall(server_label="srv", name=use.name, arguments=use.arguments, output="3", status="completed")
    )


class Adder:
    """Of an MCP server."""

    longest = 5.0

    def __init__(self, doing: Doing = adds) -> None:
        self.uses: list[Use] = []
        self._doing = doing

    def opened(self, use: Use) -> ServerItem | None:
        return None

    def recall(self, said: Said) -> None:
        pass

    async def run(self, use: Use, tell: Tell) -> Used:
        self.uses.append(use)
        return await self._doing(use)

    def unrun(self, use: Use, why: str) -> Used:
        error = McpProtocolError(code=-32000, message=why)
        item = McpCall(server_label="srv", name=use.name, arguments=use.arguments, status="failed", error=error)
        return Used(item=item, said=why)

    def rewriter(self) -> Rewriter | None:
        return None

    async def close(self) -> None: ...


class Looker(Adder):
    """Something whose arguments are not told piece by piece."""

    def opened(self, use: Use) -> ServerItem | None:
        return self._item("in_progress")

    async def run(self, use: Use, tell: Tell) -> Used:
        self.uses.append(use)
        return Used(item=self._item("completed"), said="the page")

    def unrun(self, use: Use, why: str) -> Used:
        return Used(item=self._item("failed"), said=why)

    def _item(self, status: str) -> WebSearchCall:
        return WebSearchCall(status=status, action=SearchAction(query="q"))  # type: ignore[arg-type]  # one of them


class Listing:
    async def take(self, floor: Floor) -> None:
        key = floor.key()
        await floor.feed(Opened(key, McpListTools(server_label="srv", tools=[])))
        await floor.feed(Ran(key, McpListTools(server_label="srv", tools=[])))


class Errand:
    """`outputs`: what the client's tools will have given; None if nobody waits."""

    def __init__(
        self, engine: FakeEngine, adder: Adder | None = None, outputs: Sequence[ClientOutput] | None = None
    ) -> None:
        self._engine = engine
        self._outputs = outputs
        self.adder = adder or Adder()
        self.looker = Looker()
        self.fence = 0
        self.steps: list[Step] = []
        self.approved: list[Use] = []
        self.asked: list[Use] = []
        self.allowed: list[Use] = []
        self.recalled: list[Said] = []
        self.sofar: list[Sofar] = []
        self.tokens = True
        self.closed = 0
        self.answered = False

    def first(self) -> Plan:
        return Plan(engine=self._engine, work=WORK, parser=ChatParser(WORK.prompt), declared=Declared(OFFERS))

    def tool(self, kind: str) -> Adder:
        return {"mcp": self.adder, "web_search": self.looker}[kind]

    def recall(self, item: OutputItem, said: Said) -> None:
        self.recalled.append(said)

    async def allow(self, use: Use) -> None:
        self.allowed.append(use)

    async def ask(self, use: Use, output: Sequence[OutputItem]) -> None:
        self.asked.append(use)

    async def outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        return self._outputs

    async def next(self, sofar: Sofar) -> Plan | None:
        self.sofar.append(sofar)
        if not self.tokens:
            return None
        offers = {} if sofar.last else OFFERS
        plan = self.first()
        return Plan(engine=plan.engine, work=WORK, parser=plan.parser, declared=Declared(offers))

    async def close(self) -> None:
        self.closed += 1


async def never(use: Use) -> Used:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
