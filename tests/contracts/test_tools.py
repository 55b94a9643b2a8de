"""What every built-in tool in the registry keeps: to register is to be tested.

A tool's line in STAGES says where it can work: a small world of its own on loopback, a declaration, and calls that work
there, one after the other. Nothing else in here knows one tool from another.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Struct

from antiphon.config import Config
from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, Said, Stage, Text, Thought
from antiphon.core.emitter.tool_items import KINDS, ended, is_served, item_added, worked
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.tools import FunctionTool, WebSearchTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import BuiltIn, Tool, Use, Used
from antiphon.tools.registry import TOOLS
from tests.egress.hosts import egress
from tests.oracles.responses import check_event
from tests.tools.web_search.local_web import a_web, result
from tests.tools.web_search.local_web import tool as web_search

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", TOOLS)]

SECRET = "canary-of-the-operator"
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class Setting(Struct, frozen=True, kw_only=True):
    built_in: BuiltIn
    declared: Declaration
    calls: list[tuple[str, dict[str, Any]]]  # that work, in this order
    hang: Callable[[], None]  # from now on the world does not answer any more

    def begin(self, *include: str) -> Tool:
        return self.built_in.begin(self.declared, "tenant", frozenset(include))


@asynccontextmanager
async def a_web_to_search() -> AsyncIterator[Setting]:
    async with a_web() as web:
        web.results = [result(f"{web.url}/notes.txt", "Notes", "How many there are.")]
        yield Setting(
            built_in=web_search(web, key=SECRET),
            declared=WebSearchTool(),
            calls=[
                ("web_search", {"query": "otters"}),
                ("web_open", {"id": "0"}),
                ("web_find", {"pattern": "otters"}),
            ],
            hang=lambda: setattr(web, "silent", True),
        )


STAGES: dict[str, Callable[[], AbstractAsyncContextManager[Setting]]] = {"web_search": a_web_to_search}

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
    '{"query": 7, "pattern": [], "id": {}, "code": null, "cursor": "x", "loc": 1e400}',
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


def _class(kind: str) -> Callable[..., BuiltIn]:
    module, _, name = TOOLS[kind].partition(":")
    made: Callable[..., BuiltIn] = getattr(import_module(module), name)
    return made


def use(name: str, arguments: str | dict[str, Any], key: int = 0) -> Use:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Use(key=key, id=f"item_{key}", name=name, arguments=given)


async def nobody(delta: Delta) -> None:
    pass


def strictly(events: list[Event]) -> None:
    for number, event in enumerate(events):
        event.sequence_number = number
        check_event(msgspec.json.decode(msgspec.json.encode(event)))


def check_end(used: Used) -> None:
    assert is_served(used.item)
    assert used.item.id is msgspec.UNSET
    strictly(ended(used.item, ("item_1", 0)))


async def play(tool: Tool, calls: list[tuple[str, dict[str, Any]]]) -> list[Used]:
    return [await tool.run(use(name, given, key), nobody) for key, (name, given) in enumerate(calls)]


def test_there_is_a_stage_for_every_tool(kind: str) -> None:
    assert STAGES.keys() == TOOLS.keys()


@pytest.mark.shows("E.26")
def test_without_settings_it_says_how_to_set_it_up_or_is_ready(kind: str) -> None:
    made = _class(kind)(Config(), egress())
    assert made.kind == kind
    assert made.missing == "" or (made.missing.endswith(".") and "--" in made.missing)


def test_it_is_known_by_its_declarations_and_by_gpt_oss(kind: str) -> None:
    made = _class(kind)(Config(), egress())
    others = [_class(other)(Config(), egress()) for other in TOOLS if other != kind]
    assert made.types
    assert not {*made.types} & {one for other in others for one in other.types}
    assert made.harmony not in {other.harmony for other in others} or not made.harmony
    assert all(recipient.startswith(f"{made.harmony}.") or recipient == made.harmony for recipient in made.recipients)
    assert bool(made.harmony) == bool(made.recipients)


async def test_its_functions_are_plain_functions_of_valid_schemas_that_its_calls_fit(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        functions = setting.built_in.functions(setting.declared)
        names = [one.name for one in functions]
        assert len({*names}) == len(names)
        assert {*setting.built_in.recipients.values()} <= {*names}
        schemas = {one.name: _schema(one) for one in functions}
        for name, given in setting.calls:
            schemas[name].validate(given)
        assert not setting.built_in.missing


def _schema(function: FunctionTool) -> Any:
    jsonschema_rs.validator_for({"type": "string", "pattern": FUNCTION_NAME}).validate(function.name)
    assert isinstance(function.description, str)
    assert function.parameters is not None
    assert function.parameters["type"] == "object"
    return jsonschema_rs.Draft202012Validator(function.parameters)


async def test_a_call_that_works_is_told_from_its_beginning_to_its_end(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        tool = setting.begin()
        assert 0 < tool.longest < 3600
        for key, (name, given) in enumerate(setting.calls):
            told: list[Delta] = []

            async def tell(delta: Delta, told: list[Delta] = told) -> None:
                told.append(delta)

            call = use(name, given, key)
            item = tool.opened(call)
            assert item is not None
            strictly(item_added(item, ("item_1", 0)))
            used = await tool.run(call, tell)
            assert worked(used.item)
            assert type(used.item) is type(item)
            assert used.said
            check_end(used)
            words = [delta.word for delta in told if isinstance(delta, Stage) and delta.key == key]
            assert len(words) == len(told)
            assert {*words} <= KINDS[type(item)].stages.keys()
        await tool.close()


async def test_garbage_is_an_error_with_a_sentence_and_items_are_valid_all_the_same(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        names = [one.name for one in setting.built_in.functions(setting.declared)]
        for name in (*names, "", "nonsense", "x" * 1000):
            for arguments in GARBAGE:
                tool, call = setting.begin(), use(name, arguments)
                began = time.perf_counter()
                item = tool.opened(call)
                assert item is not None
                strictly(item_added(item, ("item_1", 0)))
                try:
                    check_end(await tool.run(call, nobody))
                except AntiphonError as error:
                    assert 0 < len(error.message) < 10_000  # noqa: PT017 - it may also make sense of it
                unrun = tool.unrun(call, "It was not run.")
                check_end(unrun)
                assert not worked(unrun.item)
                assert len(msgspec.json.encode(unrun.item)) < 100_000
                assert time.perf_counter() - began < 30  # no search or picture is waited for
                await tool.close()


async def test_a_call_that_was_not_run_says_why_to_the_model(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        tool = setting.begin()
        for name, given in setting.calls:
            used = tool.unrun(use(name, given), "The canary died.")
            assert not worked(used.item)
            assert isinstance(used.said, str)
            assert "The canary died." in used.said


async def test_who_waits_no_longer_is_let_go_at_once_and_nothing_goes_on(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        setting.hang()
        tool = setting.begin()
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(tool.run(use(*setting.calls[0]), nobody))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running, 0.3)
        cancelled = asyncio.ensure_future(tool.run(use(*setting.calls[0]), nobody))
        await asyncio.wait([cancelled], timeout=0.2)
        cancelled.cancel()
        done, _ = await asyncio.wait([cancelled], timeout=20)
        assert done
        assert cancelled.cancelled()
        await tool.close()
        await tool.close()
        assert len(asyncio.all_tasks() - before) <= 3  # what the silent world itself has open


async def test_nothing_of_one_response_is_seen_in_another(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        first, second = setting.begin(), setting.begin()
        told = await play(first, setting.calls)
        assert await play(second, setting.calls) == told
        side_by_side = await asyncio.gather(*[play(setting.begin(), setting.calls) for _ in range(3)])
        assert side_by_side == [told] * 3


async def test_what_another_server_told_is_taken_up_and_garbage_is_not(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        first, second = setting.begin(), setting.begin()
        for used in await play(first, setting.calls):
            second.recall(used.said)
        assert (second.rewriter() is None) is (first.rewriter() is None)
        garbage: list[Said] = ["", "[", "[1] x\n" * 10_000, "[0] (https://x.example/)\n", "\udcff", []]
        for one in garbage:
            second.recall(one)


async def test_a_rewriter_changes_nothing_that_it_does_not_know(kind: str) -> None:
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        tool = setting.begin()
        assert tool.rewriter() is None  # there is nothing yet that could be cited
        await play(tool, setting.calls)
        rewriter = tool.rewriter()
        if rewriter is None:
            return
        deltas: list[Delta] = [Text("Hel"), Text("lo, wo"), Text("rld"), Break(), Thought("hm"), CallStarted(0, "f"),
                  CallDelta(0, "{}"), CallDone(0), Text("end")]  # fmt: skip
        assert [*rewriter.feed(deltas), *rewriter.finish()] == deltas


@pytest.mark.shows("E.8")
async def test_no_secret_of_the_operator_is_told_to_anybody(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(120), STAGES[kind]() as setting:
        tool = setting.begin("web_search_call.results", "web_search_call.action.sources")
        told = repr(await play(tool, setting.calls)) + repr(setting.built_in.functions(setting.declared))
        for name, _ in setting.calls:
            for arguments in GARBAGE[:18]:
                told += await _told(tool.run(use(name, arguments), nobody))
    assert SECRET not in told + caplog.text + repr(setting.built_in) + repr(tool)


async def _told(running: Awaitable[Used]) -> str:
    try:
        return repr(await running)
    except AntiphonError as error:
        return error.message
