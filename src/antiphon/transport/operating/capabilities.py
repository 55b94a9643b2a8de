"""GET /v1/capabilities: the request fields that each model honours, the reasons why it lacks others, and the tools that
the server runs itself or offers for its clients.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, EngineStatus
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import ServedModel, find_output_format
from antiphon.service.prompting.engine_fields import ENGINE_ONLY
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.tools.base import BuiltInTool
from antiphon.tools.tool_server.server import ServedTool
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import Route

_SERVER_FIELDS = frozenset({"input_file"})  # implemented for every engine: a file becomes text
_COMPAT_REASON = "It is accepted with --compat off."


class Member(Struct, frozen=True, kw_only=True):
    """One of the engines that serve a model, by the name that the operator chose, or its kind."""

    name: str
    engine: str
    healthy: bool
    draining: bool  # gets no new work
    breaker: Literal["closed", "open", "half-open"]  # open: it failed repeatedly, and gets no work for a while
    running: int
    slots: int | None


class Read(Struct, frozen=True, kw_only=True):
    """Parsers of the raw output of a model, by the names of `--reasoning-parser` and `--tool-call-parser`."""

    thoughts: str | None
    calls: str | None
    harmony: bool


class Ability(Struct, frozen=True, kw_only=True):
    """A model as it is currently served."""

    model: str
    engine: str
    engine_version: str | None
    healthy: bool
    level: Literal["chat", "text", "tokens"]  # of the prompts that are sent to the engine
    takes: list[str]  # all levels of prompts that the engine accepts, including that one
    context: int | None
    slots: int | None
    loaded: bool | None  # whether it is in memory; null: the engine does not report that
    counts_tokens: bool
    does: list[str]
    honours: list[str]
    lacks: dict[str, str]
    parsers: dict[str, str]  # parsers of the engine itself, as far as it reports them
    reading: Read | None  # how its raw output is parsed; null: the engine parses it
    members: list[Member]


class Failing(Struct, frozen=True, kw_only=True):
    """A model whose engine failed to report its capabilities."""

    model: str
    engine: str
    error: str


class Hosted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the server runs itself, or that an operator has to enable for clients: the computer."""

    type: str
    ready: bool
    missing: str = ""  # how the operator sets it up
    tool_server: str = ""  # name of the tool server that runs it instead
    servers: list[str] = []  # labels of MCP servers that requests may name without a URL


class Abilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    object: Literal["list"]
    data: list[Ability]
    tools: list[Hosted] = []
    failing: list[Failing] = []


class CapabilitiesEndpoint:
    def __init__(self, models: Models, toolkit: Toolkit, compat: bool = True) -> None:
        """`compat`: whether fields that OpenAI's API does not have are rejected."""
        self._models = models
        self._toolkit = toolkit
        self._refused = dict.fromkeys(ENGINE_ONLY, _COMPAT_REASON) if compat else {}

    @Route("GET", "/v1/capabilities", errors=(503,))
    async def capabilities(self, request: Request) -> Abilities:
        """List the capabilities of the models. Request fields that are honoured and those that are rejected, for each
        model on its engine.
        """
        data, failing = [], []
        for served, result in await self._models.survey():
            if isinstance(result, Capabilities):
                data.append(_describe_model(served, result, self._refused))
            else:
                failing.append(Failing(model=served.name, engine=served.engine.name, error=result.message))
        return Abilities(object="list", data=data, tools=_list_hosted_tools(self._toolkit), failing=failing)


def _list_hosted_tools(toolkit: Toolkit) -> list[Hosted]:
    mcp = [] if toolkit.mcp is None else [Hosted(type="mcp", ready=True, servers=toolkit.mcp.labels)]
    hint = toolkit.computer_hint
    return [*mcp, *map(_describe_tool, toolkit.built_in), Hosted(type="computer", ready=not hint, missing=hint)]


def _describe_tool(tool: BuiltInTool) -> Hosted:
    tool_server = tool.server_name if isinstance(tool, ServedTool) else ""
    return Hosted(type=tool.kind, ready=not tool.missing, missing=tool.missing, tool_server=tool_server)


def _describe_model(served: ServedModel, capabilities: Capabilities, refused: dict[str, str]) -> Ability:
    """`refused`: fields that clients must not send though the engine honours them, with the reasons."""
    refused = {name: reason for name, reason in refused.items() if name in capabilities.supported_fields}
    serving = [status for status in served.engine.statuses() if served.model in status.models]
    members = msgspec.convert(serving, list[Member], from_attributes=True)
    return Ability(
        model=served.name,
        engine="+".join(sorted({member.engine for member in members})) or served.engine.name,
        engine_version=capabilities.version,
        healthy=served.engine.is_healthy(),
        level=capabilities.level,
        takes=sorted({capabilities.level, *capabilities.other_levels}),
        context=capabilities.context,
        slots=capabilities.slots,
        loaded=_is_loaded(served.model, serving),
        counts_tokens=capabilities.can_count_tokens,
        does=sorted(capabilities.tasks),
        honours=sorted(
            (capabilities.supported_fields | (_SERVER_FIELDS if "generate" in capabilities.tasks else set()))
            - refused.keys()
        ),
        lacks=dict(sorted({**refused, **capabilities.unsupported_reasons}.items())),
        parsers=capabilities.parsers,
        reading=_describe_parsers(find_output_format(capabilities, served.model)),
        members=members,
    )


def _is_loaded(model: str, serving: list[EngineStatus]) -> bool | None:
    reported = [status.loaded for status in serving if status.loaded is not None]
    return any(model in loaded for loaded in reported) if reported else None


def _describe_parsers(output_format: ModelOutputFormat | None) -> Read | None:
    if output_format is None:
        return None
    if output_format.harmony:
        return Read(thoughts=None, calls=None, harmony=True)
    return Read(thoughts=output_format.reasoning, calls=output_format.calls, harmony=False)
