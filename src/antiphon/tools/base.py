"""What a tool that the server runs is: something that takes a model's call and says what came of it.

    BuiltIn   one for each kind, as long as the server lives: web_search, …; the registry has them
    Tool      one for each kind and response: runs its calls, until it is closed

A tool is run at most once for each call, under a deadline, beside others. What it raises becomes an item with an error,
and the response goes on: tools need no catch-all of their own. What a server or a page says is untrusted, and so is the
call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.core.deltas import Delta, Said, ServerItem
from antiphon.protocol.types.tools import FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration

Tell = Callable[[Delta], Awaitable[None]]  # a Stage, or whatever else is to be told while it runs


class Use(Struct, frozen=True, kw_only=True):
    """A call that a model made, whole. Its name and arguments are the model's: nothing about them is known."""

    key: int
    id: str  # of its item: what has an effect has it once for each
    name: str  # as it was declared: not the name that the model was offered
    namespace: str | None = None  # the label of an MCP server
    arguments: str
    approval: str | None = None  # the request that allowed it


class Used(Struct, frozen=True, kw_only=True):
    item: ServerItem  # without an id; its status says whether it worked
    said: Said = ""  # what the model is told, if the item does not say it


class Rewriter(Protocol):
    """Changes what a model says on its way out: marks of citations become annotations. One for each turn."""

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """What it had held back."""


class Tool(Protocol):
    """Of one response."""

    @property
    def longest(self) -> float:
        """Seconds that a call may take, all in all."""

    def opened(self, use: Use) -> ServerItem | None:
        """The item of a call whose arguments are whole, as it begins; None if they are told piece by piece (MCP)."""

    async def run(self, use: Use, tell: Tell) -> Used:
        """Raises for what went wrong: an AntiphonError with a sentence for the model and the client."""

    def unrun(self, use: Use, why: str) -> Used:
        """How a call looks that was not run, or of which nobody knows what came of it."""

    def recall(self, said: Said) -> None:
        """What the model was told of a call that another server ran for this response: what follows has to fit it."""

    def rewriter(self) -> Rewriter | None:
        """For what the model says next; None: nothing is changed."""

    async def close(self) -> None: ...


class BuiltIn(Protocol):
    """A kind of tool that comes with the server."""

    kind: str  # as in the registry
    types: tuple[type, ...]  # the declarations that it serves
    harmony: str  # the name that gpt-oss knows it by (browser, python); "" for none
    recipients: Mapping[str, str]  # how gpt-oss calls its functions: browser.search → web_search

    @property
    def missing(self) -> str:
        """How the operator sets it up; "" if that is done. Then it is offered."""

    def functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """What a model is offered for this declaration: plain functions, by their own names. None at all: it cannot
        be honoured as it is declared, and is treated like one that is not set up."""

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> Tool:
        """For one response. `include`: what the client wants to see in items beyond the usual."""

    async def close(self) -> None: ...
