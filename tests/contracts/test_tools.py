"""Contract suite of built-in tools: runs against every registered tool.

`SETUPS` has one entry per tool, and one for each that a tool server can run: the local services that it needs on
loopback, a declaration, and calls that succeed in order. All tests are independent of the tool.

Covers `tools/base.py`.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Struct

from antiphon.config import Config
from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    CommandDone,
    Delta,
    Progress,
    ReasoningDelta,
    ServerItem,
    Text,
    ToolOutputContent,
)
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS, is_server_item, make_call_item
from antiphon.core.emitter.tool_items import added_events, client_call_events, end_events, has_succeeded
from antiphon.core.image_generation import ImageRequest
from antiphon.errors import AntiphonError
from antiphon.image_services.fake_service import FakeImageService
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import ShellCall, ShellCallOutput
from antiphon.protocol.types.tools import (
    CodeInterpreterTool,
    ContainerAuto,
    ContainerReference,
    FileSearchTool,
    FunctionTool,
    ImageGenerationTool,
    ShellTool,
    WebSearchTool,
)
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.images import Images
from antiphon.tools.base import BuiltInTool, ModelToolCall, ResponseTool, ToolResult, ToolServices
from antiphon.tools.image_generation.tool import ImageGeneration
from antiphon.tools.registry import SERVED_TOOLS, TOOLS
from tests.egress.hosts import make_egress_client
from tests.oracles.responses import check_event
from tests.tools.code_interpreter.local_containers import make_shell, run_containers
from tests.tools.code_interpreter.local_containers import make_tool as make_code_interpreter
from tests.tools.file_search.library import Library, make_hit
from tests.tools.file_search.library import make_tool as make_file_search
from tests.tools.tool_server.local_tool_server import make_services, run_tool_server
from tests.tools.web_search.local_web import make_result, run_local_web
from tests.tools.web_search.local_web import make_tool as web_search

ON_SERVER = " on a tool server"
KINDS = TOOLS | {kind + ON_SERVER: path for kind, (_, path) in SERVED_TOOLS.items()}
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", KINDS)]

SECRET = "canary-of-the-operator"
UNCONFIGURED = ToolServices(config=Config(), egress=make_egress_client())
UNREACHABLE = make_services("http://127.0.0.1:9/mcp")
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class ToolSetup(Struct, frozen=True, kw_only=True):
    built_in: BuiltInTool
    declaration: Declaration
    calls: list[tuple[str, dict[str, Any]]]  # these succeed, in this order
    stall: Callable[[], None]  # makes the local services stop responding
    argument: str = ""  # the only argument, if it is passed on as text

    def make_call(self, name: str, arguments: dict[str, Any], key: int = 0) -> ModelToolCall:
        return make_call(name, arguments[self.argument] if self.argument else arguments, key)

    def begin(self, *include: str) -> ResponseTool:
        return self.built_in.begin(self.declaration, "tenant", frozenset(include))


@asynccontextmanager
async def open_web_search_setup() -> AsyncIterator[ToolSetup]:
    async with run_local_web() as web:
        web.results = [make_result(f"{web.url}/notes.txt", "Notes", "How many there are.")]
        yield ToolSetup(
            built_in=web_search(web, key=SECRET),
            declaration=WebSearchTool(),
            calls=[
                ("web_search", {"query": "otters"}),
                ("web_open", {"id": "0"}),
                ("web_find", {"pattern": "otters"}),
            ],
            stall=lambda: setattr(web, "silent", True),
        )


@asynccontextmanager
async def open_file_search_setup() -> AsyncIterator[ToolSetup]:
    library = Library(make_hit("otters.txt", "Otters hold hands."), make_hit("fish.txt", "Fish swim."))
    yield ToolSetup(
        built_in=make_file_search(library),
        declaration=FileSearchTool(vector_store_ids=["vs_1"]),
        calls=[("file_search", {"queries": ["otters"]}), ("file_search", {"queries": ["otters", "fish"]})],
        stall=library.searchable.clear,
    )


@asynccontextmanager
async def open_code_interpreter_setup() -> AsyncIterator[ToolSetup]:
    async with run_containers() as containers:
        yield ToolSetup(
            built_in=make_code_interpreter(containers),
            declaration=CodeInterpreterTool(container=await containers.add()),
            calls=[
                ("code_interpreter", {"code": "print('otters')"}),
                ("code_interpreter", {"code": "open('/mnt/data/otters', 'w').write('3')"}),
            ],
            stall=containers.running.clear,
            argument="code",
        )


@asynccontextmanager
async def open_hosted_shell_setup() -> AsyncIterator[ToolSetup]:
    async with run_containers() as containers:
        yield ToolSetup(
            built_in=make_shell(containers),
            declaration=ShellTool(environment=ContainerReference(container_id=await containers.add())),
            calls=[
                ("shell", {"commands": ["echo otters"]}),
                ("shell", {"commands": ["printf 3 > otters", "exit 4"], "timeout_ms": 9000, "max_output_length": 5}),
            ],
            stall=containers.running.clear,
        )


@asynccontextmanager
async def open_image_generation_setup() -> AsyncIterator[ToolSetup]:
    images = Images([FakeImageService(ImageServiceSpec(url="fake", slots=1), make_egress_client())], queue=8)
    services = ToolServices(
        config=Config(), egress=make_egress_client(), images=images, load_images=Attachments().load_images
    )
    stalled: list[asyncio.Future[None]] = []

    async def occupy_service() -> None:
        async for _ in images.generate("other", ImageRequest(prompt="[fake silence]")):
            pass

    yield ToolSetup(
        built_in=ImageGeneration(services),
        declaration=ImageGenerationTool(),
        calls=[
            ("image_generation", {"prompt": "an otter"}),
            ("image_generation", {"prompt": "a hat", "action": "edit", "size": "256x512"}),
        ],
        stall=lambda: stalled.append(asyncio.ensure_future(occupy_service())),
    )
    for one in stalled:
        one.cancel()


@asynccontextmanager
async def open_server_setup(
    kind: str, declaration: Declaration, argument: str, calls: list[tuple[str, dict[str, Any]]]
) -> AsyncIterator[ToolSetup]:
    with run_tool_server() as server:
        built_in = load_class(kind)(make_services(server.url, token=SECRET))
        try:
            yield ToolSetup(
                built_in=built_in,
                declaration=declaration,
                calls=calls,
                stall=server.released.clear,
                argument=argument,
            )
        finally:
            await built_in.close()


SetupFactory = Callable[[], AbstractAsyncContextManager[ToolSetup]]
SETUPS: dict[str, SetupFactory] = {"file_search": open_file_search_setup, "web_search": open_web_search_setup}
SETUPS |= {"code_interpreter": open_code_interpreter_setup, "hosted_shell": open_hosted_shell_setup}
SETUPS |= {"image_generation": open_image_generation_setup}
SERVED_CALLS: dict[str, tuple[Declaration, str, list[tuple[str, dict[str, Any]]]]] = {
    "code_interpreter": (
        CodeInterpreterTool(),
        "code",
        [("code_interpreter", {"code": "x = 41"}), ("code_interpreter", {"code": "print(x + 1)"})],
    ),
    "web_search": (
        WebSearchTool(),
        "",
        [("web_search", {"query": "otters"}), ("web_open", {"id": "0"}), ("web_find", {"pattern": "fish"})],
    ),
    "hosted_shell": (
        ShellTool(environment=ContainerAuto()),
        "",
        [("shell", {"commands": ["echo otters"]}), ("shell", {"commands": ["exit 4"], "timeout_ms": 9000})],
    ),
}
SETUPS |= {
    kind + ON_SERVER: partial(open_server_setup, kind + ON_SERVER, *served) for kind, served in SERVED_CALLS.items()
}

GARBAGE = [
    "",
    " ",
    "null",
    "[]",
    "7",
    '"text"',
    "not json",
    "{",
    '{"a":',
    "{}",
    '{"query": 7, "pattern": [], "id": {}, "code": null, "cursor": "x", "loc": 1e400, "queries": 7}',
    '{"queries": []}',
    '{"queries": ["a", "b", "c", "d", "e"]}',
    '{"queries": ["", "\\ud800"]}',
    '{"query": null, "pattern": null, "id": null, "cursor": null}',
    '{"query": "", "pattern": "", "id": "", "code": ""}',
    '{"query": "\\ud800", "pattern": "\\ud800", "id": "\\ud800"}',
    '{"id": -1, "cursor": -1, "loc": -1, "num_lines": -1}',
    '{"id": 99999999999999999999999999, "cursor": 99999999999999999999999999}',
    '{"id": "http://[", "query": "\\u0000", "pattern": "\\n\\n"}',
    '{"query": "' + "x" * 2000 + '"}',
    '{"id": "https://x.example/' + "x" * 20_000 + '"}',
    '{"extra": ' + "[" * 20_000,
    "[" * 100_000,
    "\udcff",
    '{"query": "' + "x" * 2_000_000 + '"}',
    json.dumps({"id": "file:///etc/passwd", "query": "a" * 900, "pattern": "b" * 900}),
]


def load_class(kind: str) -> Callable[..., BuiltInTool]:
    module, _, name = KINDS[kind].partition(":")
    made: Callable[..., BuiltInTool] = getattr(import_module(module), name)
    return made


def make_unused(kind: str) -> BuiltInTool:
    return load_class(kind)(UNREACHABLE if kind.endswith(ON_SERVER) else UNCONFIGURED)


def make_call(name: str, arguments: str | dict[str, Any], key: int = 0) -> ModelToolCall:
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ModelToolCall(key=key, id=f"item_{key}", name=name, arguments=encoded)


async def discard_delta(delta: Delta) -> None:
    pass


def check_events(events: list[Event]) -> None:
    for number, event in enumerate(events):
        event.sequence_number = number
        check_event(msgspec.json.decode(msgspec.json.encode(event)))


def check_result(tool_result: ToolResult) -> None:
    assert is_server_item(tool_result.item)
    assert tool_result.item.id is msgspec.UNSET
    check_events(end_events(tool_result.item, ("item_1", 0)))


def start_item(tool: ResponseTool, call: ModelToolCall) -> ServerItem:
    """Return the initial item. That of a streamed call is made when the model begins to write it.

    A shell call is complete, and the item of its output starts.
    """
    item = tool.start_item(call)
    if isinstance(item, ShellCall):
        check_events(client_call_events(item, ("item_0", 0), "call_1"))
        return ShellCallOutput(call_id="call_1", output=[])
    return item or make_call_item(CallStarted(call.key, call.name, "code_interpreter", "cntr_1"))


async def run_calls(tool: ResponseTool, setup: ToolSetup) -> list[ToolResult]:
    return [
        await tool.run(setup.make_call(name, arguments, key), discard_delta)
        for key, (name, arguments) in enumerate(setup.calls)
    ]


def without_ids(results: list[ToolResult]) -> str:
    """Return the results without the ids of containers, which are made for each response."""
    return re.sub(r"cntr_\w+", "cntr_", repr(results))


def test_every_tool_has_a_setup(kind: str) -> None:
    assert SETUPS.keys() == KINDS.keys()


@pytest.mark.shows("E.26")
def test_an_unconfigured_tool_is_ready_or_names_the_missing_flags(kind: str) -> None:
    built_in = make_unused(kind)
    assert built_in.kind == kind.removesuffix(ON_SERVER)
    assert built_in.missing == "" or (built_in.missing.endswith(".") and "--" in built_in.missing)


def test_declaration_types_and_harmony_names_are_unique(kind: str) -> None:
    built_in = make_unused(kind)
    others = [make_unused(other) for other in TOOLS if other != built_in.kind]
    assert built_in.types
    assert not {*built_in.types} & {one for other in others for one in other.types}
    assert built_in.harmony not in {other.harmony for other in others} or not built_in.harmony
    assert all(
        recipient.startswith(f"{built_in.harmony}.") or recipient == built_in.harmony
        for recipient in built_in.recipients
    )
    assert bool(built_in.harmony) == bool(built_in.recipients)


async def test_functions_have_valid_schemas_that_accept_the_calls(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        functions = setup.built_in.list_functions(setup.declaration)
        names = [one.name for one in functions]
        assert len({*names}) == len(names)
        assert {*setup.built_in.recipients.values()} <= {*names}
        schemas = {one.name: _build_validator(one) for one in functions}
        for name, arguments in setup.calls:
            schemas[name].validate(arguments)
        assert not setup.built_in.missing


def _build_validator(function: FunctionTool) -> Any:
    jsonschema_rs.validator_for({"type": "string", "pattern": FUNCTION_NAME}).validate(function.name)
    assert isinstance(function.description, str)
    assert function.parameters is not None
    assert function.parameters["type"] == "object"
    return jsonschema_rs.Draft202012Validator(function.parameters)


async def test_a_successful_call_emits_valid_events_from_start_to_end(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        tool = setup.begin()
        assert 0 < tool.max_seconds < 3600
        for key, (name, arguments) in enumerate(setup.calls):
            deltas: list[Delta] = []

            async def record_delta(delta: Delta, deltas: list[Delta] = deltas) -> None:
                deltas.append(delta)

            call = setup.make_call(name, arguments, key)
            item = start_item(tool, call)
            check_events(added_events(item, ("item_1", 0)))
            tool_result = await tool.run(call, record_delta)
            assert has_succeeded(tool_result.item)
            assert type(tool_result.item) is type(item)
            assert tool_result.model_output
            check_result(tool_result)
            progress = [delta for delta in deltas if isinstance(delta, Progress | CommandDone) and delta.key == key]
            assert progress == deltas
            stages = [delta.stage for delta in progress if isinstance(delta, Progress)]
            assert {*stages} <= SERVER_ITEM_KINDS[type(item)].stages.keys()
        await tool.close()


async def test_invalid_arguments_result_in_an_error_message_and_valid_items(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        names = [one.name for one in setup.built_in.list_functions(setup.declaration)]
        for name in (*names, "", "nonsense", "x" * 1000):
            for arguments in GARBAGE:
                tool, call = setup.begin(), make_call(name, arguments)
                began = time.perf_counter()
                check_events(added_events(start_item(tool, call), ("item_1", 0)))
                try:
                    check_result(await tool.run(call, discard_delta))
                except AntiphonError as error:
                    assert 0 < len(error.message) < 10_000  # noqa: PT017 - the call may also succeed
                failed = tool.make_failed_result(call, "It was not run.")
                check_result(failed)
                assert not has_succeeded(failed.item)
                assert len(msgspec.json.encode(failed.item)) < 100_000
                assert time.perf_counter() - began < 30  # no call waits for a search or an image
                await tool.close()


async def test_the_result_of_a_call_that_was_not_run_contains_the_reason(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        tool = setup.begin()
        for name, arguments in setup.calls:
            tool_result = tool.make_failed_result(setup.make_call(name, arguments), "The canary died.")
            assert not has_succeeded(tool_result.item)
            assert isinstance(tool_result.model_output, str)
            assert "The canary died." in tool_result.model_output


async def test_a_cancelled_call_ends_at_once_and_leaves_no_tasks(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        setup.stall()
        tool = setup.begin()
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(tool.run(setup.make_call(*setup.calls[0]), discard_delta))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running, 0.3)
        cancelled = asyncio.ensure_future(tool.run(setup.make_call(*setup.calls[0]), discard_delta))
        await asyncio.wait([cancelled], timeout=0.2)
        cancelled.cancel()
        done, _ = await asyncio.wait([cancelled], timeout=20)
        assert done
        assert cancelled.cancelled()
        await tool.close()
        await tool.close()
        await setup.built_in.close()  # sessions with tool servers are kept until then
        assert len(asyncio.all_tasks() - before) <= 3  # connections of the stalled local services


async def test_responses_share_no_tool_state(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        first, second = setup.begin(), setup.begin()
        results = without_ids(await run_calls(first, setup))
        assert without_ids(await run_calls(second, setup)) == results
        side_by_side = await asyncio.gather(*[run_calls(setup.begin(), setup) for _ in range(3)])
        assert [*map(without_ids, side_by_side)] == [results] * 3


async def test_outputs_of_another_server_are_restored_and_invalid_ones_ignored(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        first, second = setup.begin(), setup.begin()
        for tool_result in await run_calls(first, setup):
            second.restore_output(tool_result.model_output)
        assert await second.recover([]) == ""
        assert (second.make_rewriter(is_last=True) is None) is (first.make_rewriter(is_last=True) is None)
        garbage: list[ToolOutputContent] = ["", "[", "[1] x\n" * 10_000, "[0] (https://x.example/)\n", "\udcff", []]
        for one in garbage:
            second.restore_output(one)


async def test_a_rewriter_leaves_unrelated_deltas_unchanged(kind: str) -> None:
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        tool = setup.begin()
        assert tool.make_rewriter(is_last=True) is None  # no output yet that could be cited
        await run_calls(tool, setup)
        rewriter = tool.make_rewriter(is_last=True)
        if rewriter is None:
            return
        deltas: list[Delta] = [
            Text("Hel"),
            Text("lo, wo"),
            Text("rld"),
            Break(),
            ReasoningDelta("hm"),
            CallStarted(0, "f"),
            CallDelta(0, "{}"),
            CallDone(0),
            Text("end"),
        ]
        assert [*rewriter.feed(deltas), *rewriter.finish()] == deltas


@pytest.mark.shows("E.8")
async def test_no_secret_of_the_operator_is_exposed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(120), SETUPS[kind]() as setup:
        tool = setup.begin("web_search_call.results", "web_search_call.action.sources")
        output = repr(await run_calls(tool, setup)) + repr(setup.built_in.list_functions(setup.declaration))
        for name, _ in setup.calls:
            for arguments in GARBAGE[:18]:
                output += await _run_to_text(tool.run(make_call(name, arguments), discard_delta))
    assert SECRET not in output + caplog.text + repr(setup.built_in) + repr(tool)


async def _run_to_text(running: Awaitable[ToolResult]) -> str:
    try:
        return repr(await running)
    except AntiphonError as error:
        return error.message
