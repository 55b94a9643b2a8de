"""Contract of built-in tools (`tools/base.py`): the tests of `ToolContract`."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Struct

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
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import ShellCall, ShellCallOutput
from antiphon.protocol.types.tools import FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.testing.suite import shows
from antiphon.tools.base import BuiltInTool, ModelToolCall, ResponseTool, ToolResult
from antiphon.tools.registry import TOOLS

SECRET = "canary-of-the-operator"
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


def check_shape(event: dict[str, Any]) -> None:
    """Raise AssertionError if an event has no type. The openai package has the types to compare events with."""
    assert isinstance(event.get("type"), str)


class ToolSetup(Struct, frozen=True, kw_only=True):
    """A tool with the local services that it needs, which have SECRET wherever they have a key."""

    built_in: BuiltInTool
    declaration: Declaration
    calls: list[tuple[str, dict[str, Any]]]  # these succeed, in this order
    stall: Callable[[], None]  # makes the local services stop responding
    argument: str = ""  # the only argument, if it is passed on as text
    check_event: Callable[[dict[str, Any]], None] = check_shape  # raises AssertionError for an event with a wrong shape

    def make_call(self, name: str, arguments: dict[str, Any], key: int = 0) -> ModelToolCall:
        return make_call(name, arguments[self.argument] if self.argument else arguments, key)

    def begin(self, *include: str) -> ResponseTool:
        return self.built_in.begin(self.declaration, "tenant", frozenset(include))

    def check_events(self, events: list[Event]) -> None:
        for number, event in enumerate(events):
            event.sequence_number = number
            self.check_event(msgspec.json.decode(msgspec.json.encode(event)))

    def check_result(self, tool_result: ToolResult) -> None:
        assert is_server_item(tool_result.item)
        assert tool_result.item.id is msgspec.UNSET
        self.check_events(end_events(tool_result.item, ("item_1", 0)))

    def start_item(self, tool: ResponseTool, call: ModelToolCall) -> ServerItem:
        """Return the initial item. That of a streamed call is made when the model begins to write it.

        A shell call is complete, and the item of its output starts.
        """
        item = tool.start_item(call)
        if isinstance(item, ShellCall):
            self.check_events(client_call_events(item, ("item_0", 0), "call_1"))
            return ShellCallOutput(call_id="call_1", output=[])
        return item or make_call_item(CallStarted(call.key, call.name, "code_interpreter", "cntr_1"))


OpenSetup = Callable[[], AbstractAsyncContextManager[ToolSetup]]


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


def make_call(name: str, arguments: str | dict[str, Any], key: int = 0) -> ModelToolCall:
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ModelToolCall(key=key, id=f"item_{key}", name=name, arguments=encoded)


async def discard_delta(delta: Delta) -> None:
    pass


async def run_calls(tool: ResponseTool, setup: ToolSetup) -> list[ToolResult]:
    return [
        await tool.run(setup.make_call(name, arguments, key), discard_delta)
        for key, (name, arguments) in enumerate(setup.calls)
    ]


def without_ids(results: list[ToolResult]) -> str:
    """Return the results without the ids of containers, which are made for each response."""
    return re.sub(r"cntr_\w+", "cntr_", repr(results))


@shows("E.26")
def test_an_unconfigured_tool_is_ready_or_names_the_missing_flags(unconfigured: BuiltInTool) -> None:
    assert unconfigured.kind in TOOLS
    assert unconfigured.types
    assert unconfigured.missing == "" or (unconfigured.missing.endswith(".") and "--" in unconfigured.missing)


async def test_functions_have_valid_schemas_that_accept_the_calls(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
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


async def test_a_successful_call_emits_valid_events_from_start_to_end(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
        tool = setup.begin()
        assert 0 < tool.max_seconds < 3600
        for key, (name, arguments) in enumerate(setup.calls):
            deltas: list[Delta] = []

            async def record_delta(delta: Delta, deltas: list[Delta] = deltas) -> None:
                deltas.append(delta)

            call = setup.make_call(name, arguments, key)
            item = setup.start_item(tool, call)
            setup.check_events(added_events(item, ("item_1", 0)))
            tool_result = await tool.run(call, record_delta)
            assert has_succeeded(tool_result.item)
            assert type(tool_result.item) is type(item)
            assert tool_result.model_output
            setup.check_result(tool_result)
            progress = [delta for delta in deltas if isinstance(delta, Progress | CommandDone) and delta.key == key]
            assert progress == deltas
            stages = [delta.stage for delta in progress if isinstance(delta, Progress)]
            assert {*stages} <= SERVER_ITEM_KINDS[type(item)].stages.keys()
        await tool.close()


async def test_invalid_arguments_result_in_an_error_message_and_valid_items(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
        names = [one.name for one in setup.built_in.list_functions(setup.declaration)]
        for name in (*names, "", "nonsense", "x" * 1000):
            for arguments in GARBAGE:
                tool, call = setup.begin(), make_call(name, arguments)
                began = time.perf_counter()
                setup.check_events(added_events(setup.start_item(tool, call), ("item_1", 0)))
                try:
                    setup.check_result(await tool.run(call, discard_delta))
                except AntiphonError as error:
                    assert 0 < len(error.message) < 10_000  # noqa: PT017 - the call may also succeed
                failed = tool.make_failed_result(call, EngineFailed("It was not run."))
                setup.check_result(failed)
                assert not has_succeeded(failed.item)
                assert len(msgspec.json.encode(failed.item)) < 100_000
                assert time.perf_counter() - began < 30  # no call waits for a search or an image
                await tool.close()


async def test_the_result_of_a_call_that_was_not_run_contains_the_reason(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
        tool = setup.begin()
        for name, arguments in setup.calls:
            tool_result = tool.make_failed_result(setup.make_call(name, arguments), EngineFailed("The canary died."))
            assert not has_succeeded(tool_result.item)
            assert isinstance(tool_result.model_output, str)
            assert "The canary died." in tool_result.model_output


async def test_a_cancelled_call_ends_at_once_and_leaves_no_tasks(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
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


async def test_responses_share_no_tool_state(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
        first, second = setup.begin(), setup.begin()
        results = without_ids(await run_calls(first, setup))
        assert without_ids(await run_calls(second, setup)) == results
        side_by_side = await asyncio.gather(*[run_calls(setup.begin(), setup) for _ in range(3)])
        assert [*map(without_ids, side_by_side)] == [results] * 3


async def test_outputs_of_another_server_are_restored_and_invalid_ones_ignored(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
        first, second = setup.begin(), setup.begin()
        for tool_result in await run_calls(first, setup):
            second.restore_output(tool_result.model_output)
        assert await second.recover([]) == ""
        assert (second.make_rewriter(is_last=True) is None) is (first.make_rewriter(is_last=True) is None)
        garbage: list[ToolOutputContent] = ["", "[", "[1] x\n" * 10_000, "[0] (https://x.example/)\n", "\udcff", []]
        for one in garbage:
            second.restore_output(one)


async def test_a_rewriter_leaves_unrelated_deltas_unchanged(open_setup: OpenSetup) -> None:
    async with asyncio.timeout(120), open_setup() as setup:
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


@shows("E.8")
async def test_no_secret_of_the_operator_is_exposed(open_setup: OpenSetup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(120), open_setup() as setup:
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
