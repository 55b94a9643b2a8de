"""GET /v1/capabilities: what each model on its engine takes and honours, and why it does not honour the rest; and which
tools the server runs itself."""

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, State
from antiphon.errors import AntiphonError
from antiphon.parsers.detection import Manner
from antiphon.service.model_io.models import Served
from antiphon.service.model_io.selection import heard_as
from antiphon.service.prompting.engine_fields import ENGINE_ONLY
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.transport.http.request import Request, Route

_encode = msgspec.json.Encoder().encode
_EVERYWHERE = frozenset({"input_file"})  # what is done for every engine: a file becomes text
_REFUSED = "It is taken with --compat off."


class Directory(Protocol):
    async def survey(self) -> list[tuple[Served, Capabilities | AntiphonError]]: ...


class Member(Struct, frozen=True, kw_only=True):
    """One of the engines that serve a model, by the name that the operator gave it, or its kind."""

    name: str
    engine: str
    healthy: bool
    draining: bool  # it gets no new work
    breaker: Literal["closed", "open", "half-open"]  # open: it failed again and again, and gets no work for a while
    running: int
    slots: int | None


class Read(Struct, frozen=True, kw_only=True):
    """By the names of `--reasoning-parser` and `--tool-call-parser`."""

    thoughts: str | None
    calls: str | None
    harmony: bool


class Ability(Struct, frozen=True, kw_only=True):
    """A model as it is served now."""

    model: str
    engine: str
    engine_version: str | None
    healthy: bool
    level: Literal["chat", "text", "tokens"]  # of what is sent to the engine
    takes: list[str]  # kinds of prompts, that one included
    context: int | None
    slots: int | None
    counts_tokens: bool
    does: list[str]
    honours: list[str]
    lacks: dict[str, str]
    parsers: dict[str, str]  # what the engine parses itself, as far as it tells
    reading: Read | None  # how its raw output is read; null: the engine parses it
    members: list[Member]


class Failing(Struct, frozen=True, kw_only=True):
    """A model whose engine fails when it is asked what it can do."""

    model: str
    engine: str
    error: str


class Hosted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the server runs itself."""

    type: str
    ready: bool
    missing: str = ""  # how its operator sets it up
    servers: list[str] = []  # labels of MCP servers that requests may name without a URL


class Abilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    object: Literal["list"]
    data: list[Ability]
    tools: list[Hosted] = []
    failing: list[Failing] = []


class CapabilitiesEndpoint:
    def __init__(self, models: Directory, toolkit: Toolkit, compat: bool = True) -> None:
        """`compat`: fields that OpenAI's API does not have are refused."""
        self._models = models
        self._toolkit = toolkit
        self._refused = dict.fromkeys(ENGINE_ONLY, _REFUSED) if compat else {}

    def route(self) -> Route:
        return Route(
            method="GET",
            path="/v1/capabilities",
            endpoint=self.capabilities,
            summary="What can the models do?",
            description="Request fields that are honoured, and those that are refused, for each model on its engine.",
            gives=Abilities,
            errors=(503,),
        )

    async def capabilities(self, request: Request) -> None:
        data, failing = [], []
        for served, able in await self._models.survey():
            if isinstance(able, Capabilities):
                data.append(_ability(served, able, self._refused))
            else:
                failing.append(Failing(model=served.name, engine=served.engine.name, error=able.message))
        abilities = Abilities(object="list", data=data, tools=_hosted(self._toolkit), failing=failing)
        await request.reply(200, _encode(abilities))


def _hosted(toolkit: Toolkit) -> list[Hosted]:
    mcp = [] if toolkit.mcp is None else [Hosted(type="mcp", ready=True, servers=toolkit.mcp.labels)]
    built_in = [Hosted(type=tool.kind, ready=not tool.missing, missing=tool.missing) for tool in toolkit.built_in]
    return mcp + built_in


def _ability(served: Served, able: Capabilities, refused: dict[str, str]) -> Ability:
    """`refused`: what is not taken of clients though the engine honours it, and why."""
    refused = {name: why for name, why in refused.items() if name in able.honours}
    members = [_member(state) for state in served.engine.states() if served.model in state.models]
    return Ability(
        model=served.name,
        engine="+".join(sorted({member.engine for member in members})) or served.engine.name,
        engine_version=able.version,
        healthy=served.engine.healthy(),
        level=able.prompt,
        takes=sorted({able.prompt, *able.takes}),
        context=able.context,
        slots=able.slots,
        counts_tokens=able.counts,
        does=sorted(able.does),
        honours=sorted((able.honours | (_EVERYWHERE if "generate" in able.does else set())) - refused.keys()),
        lacks=dict(sorted({**refused, **able.lacks}.items())),
        parsers=able.parsers,
        reading=_read(heard_as(able, served.model)),
        members=members,
    )


def _read(manner: Manner | None) -> Read | None:
    if manner is None:
        return None
    if manner.harmony:
        return Read(thoughts=None, calls=None, harmony=True)
    return Read(thoughts=manner.thoughts, calls=manner.calls, harmony=False)


def _member(state: State) -> Member:
    return Member(
        name=state.name,
        engine=state.engine,
        healthy=state.healthy,
        draining=state.draining,
        breaker=state.breaker,
        running=state.running,
        slots=state.slots,
    )
