"""`ToolCallResolver`: the name of a call determines its tool, and calls of undeclared tools leave no item."""

import json
import re
from contextlib import nullcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.agent.tool_resolver import ToolCallResolver, UnservedCall
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ItemAdded, ReasoningDelta, Refusal, Text
from antiphon.errors import InvalidCall
from antiphon.protocol.types.items import ShellCall
from antiphon.protocol.types.tools import ComputerUsePreviewTool
from antiphon.render.tools.computer import make_computer_function
from antiphon.render.tools.offered_tools import OfferedTool
from tests.parsers.cuts import CUTS, split_at

OFFERS = {
    "weather": OfferedTool("function", "weather"),
    "sql": OfferedTool("custom", "sql"),
    "functions__exec": OfferedTool("custom", "exec", "functions"),
    "a__get": OfferedTool("function", "get", "a"),
    "b__get": OfferedTool("function", "get", "b"),
}


def resolve_deltas(*deltas: Delta, parallel: bool = True) -> list[Delta]:
    return list(ToolCallResolver(OFFERS, parallel).resolve(list(deltas)))


def test_a_function_call_passes_unchanged() -> None:
    call: list[Delta] = [CallStarted(0, "weather"), CallDelta(0, "{}"), CallDone(0)]
    assert resolve_deltas(*call) == call


@pytest.mark.shows("E.22")
def test_an_offered_name_is_mapped_to_the_declared_name() -> None:
    assert resolve_deltas(CallStarted(3, "a__get")) == [CallStarted(3, "get", "function", "a")]


@pytest.mark.parametrize("name", ["functions__exec", "exec", "functions.exec", "functions/exec"])
def test_common_spellings_of_a_namespaced_name_are_accepted(name: str) -> None:
    assert resolve_deltas(CallStarted(0, name)) == [CallStarted(0, "exec", "custom", "functions")]


@pytest.mark.parametrize("name", ["srv__get_sum", "get_sum", "srv.get-sum", "Get-Sum"])
def test_hyphens_and_case_are_ignored_if_only_one_tool_matches(name: str) -> None:
    offers = {**OFFERS, "srv__get-sum": OfferedTool("mcp", "get-sum", "srv")}
    assert [*ToolCallResolver(offers).resolve([CallStarted(0, name)])] == [CallStarted(0, "get-sum", "mcp", "srv")]
    offers["other__get_sum"] = OfferedTool("mcp", "get_sum", "other")
    assert [*ToolCallResolver(offers).resolve([CallStarted(0, "GET_SUM")])] == []


@pytest.mark.shows("E1.3")
def test_a_call_of_a_client_tool_is_checked_against_the_offered_schema_where_no_rules_apply() -> None:
    tool = ComputerUsePreviewTool(display_width=640, display_height=480, environment="mac")
    offer = OfferedTool("computer_use_preview", "computer", parameters=make_computer_function(tool).parameters)
    for x, is_valid in ((639, True), (640, False)):
        resolver = ToolCallResolver({"computer": offer})
        call: list[Delta] = [
            CallStarted(0, "computer"),
            CallDelta(0, json.dumps({"type": "move", "x": x, "y": 0})),
            CallDone(0),
        ]
        with nullcontext() if is_valid else pytest.raises(InvalidCall):
            assert len(resolver.gather(resolver.resolve(call))) == 1


def test_server_calls_are_gathered_and_those_that_need_approval_are_not_emitted() -> None:
    resolver = ToolCallResolver(
        {"add": OfferedTool("mcp", "add", "s"), "drop": OfferedTool("mcp", "drop", "s", approval=True)}
    )
    deltas: list[Delta] = [CallStarted(0, "add"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "drop"), CallDone(1)]
    resolved = [*resolver.gather(resolver.resolve([*deltas, CallStarted(2, "add")]))]
    assert [delta.key for delta in resolved if not isinstance(delta, Text)] == [0, 0, 0, 2]  # type: ignore[union-attr]  # calls
    assert [(call.offer.name, call.arguments) for call in resolver.server_calls] == [("add", "{}"), ("drop", "")]


@pytest.mark.shows("E.24")
def test_a_client_tool_call_is_emitted_as_its_item_once_it_is_complete() -> None:
    resolver = ToolCallResolver({"shell": OfferedTool("shell", "shell")})
    pieces: list[Delta] = [CallStarted(0, "shell"), CallDelta(0, '{"commands":'), CallDelta(0, '["ls"]}')]
    assert [*resolver.gather(resolver.resolve(pieces))] == []
    (put,) = resolver.gather(resolver.resolve([CallDone(0)]))
    assert isinstance(put, ItemAdded)
    assert isinstance(put.item, ShellCall)
    assert put.item.action.commands == ["ls"]
    assert [*resolver.gather(resolver.resolve([CallDone(0)]))] == []
    assert not resolver.server_calls
    assert not resolver.take_cut_calls()
    assert resolver.client_call_count == 1


@pytest.mark.shows("D2.4")
def test_a_cut_client_tool_call_gives_an_incomplete_item() -> None:
    resolver = ToolCallResolver({"shell": OfferedTool("shell", "shell")})
    assert [*resolver.gather(resolver.resolve([CallStarted(0, "shell"), CallDelta(0, '{"commands": ["ls", "r')]))] == []
    (put,) = resolver.take_cut_calls()
    assert isinstance(put, ItemAdded)
    assert isinstance(put.item, ShellCall)
    assert (put.item.status, put.item.action.commands) == ("incomplete", ["ls"])


@pytest.mark.parametrize("name", ["shell", "container.exec", "container.anything", "functions.shell"])
@pytest.mark.shows("D2.2")
def test_container_calls_of_gpt_oss_go_to_the_first_shell_tool(name: str) -> None:
    shells = {kind: OfferedTool(kind, kind, recipient="container.exec") for kind in ("shell", "local_shell")}
    assert [*ToolCallResolver({**OFFERS, **shells}).resolve([CallStarted(0, name)])] == [CallStarted(0, "shell")]
    assert [*ToolCallResolver(OFFERS).resolve([CallStarted(0, name)])] == []


def test_a_retry_uses_new_call_keys() -> None:
    resolver = ToolCallResolver(OFFERS)
    assert [*resolver.resolve([CallStarted(0, "weather"), CallStarted(1, "sql")])]
    assert [*resolver.copy_for_retry().resolve([CallStarted(0, "weather")])] == [CallStarted(2, "weather")]


@pytest.mark.parametrize("name", ["get", "nothing", ""])
@pytest.mark.shows("D.19")
def test_a_call_of_an_undeclared_tool_leaves_no_delta_and_is_collected(name: str) -> None:
    resolver = ToolCallResolver(OFFERS)
    call: list[Delta] = [Text("a"), CallStarted(0, name), CallDelta(0, "{"), CallDelta(0, "}"), CallDone(0), Text("b")]
    assert list(resolver.resolve(call)) == [Text("a"), Text("b")]
    assert resolver.unserved == {0: UnservedCall(name, "{}")}


UNSERVED: list[Delta] = [CallStarted(0, "nothing"), CallDone(0)]
SERVED: list[Delta] = [CallStarted(1, "weather"), CallDone(1)]


@pytest.mark.parametrize(
    ("deltas", "lacks_answer"),
    [
        ([], False),
        ([Text(" ")], False),
        ([Text("a")], False),
        ([Refusal("no")], False),
        ([ReasoningDelta("a")], True),
        ([ReasoningDelta("a"), Text("\n")], True),
        ([ReasoningDelta("a"), Text("b")], False),
        (UNSERVED, True),
        ([Text("a"), *UNSERVED], True),
        ([*UNSERVED, Text("a")], False),
        ([*UNSERVED, *SERVED], False),
        ([*SERVED, *UNSERVED], False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_output_lacks_an_answer_if_it_ends_with_reasoning_or_an_unserved_call(
    deltas: list[Delta], lacks_answer: bool, apart: bool
) -> None:
    resolver = ToolCallResolver(OFFERS)
    for batch in [[delta] for delta in deltas] if apart else [deltas]:
        resolver.resolve(batch)
    assert resolver.lacks_answer is lacks_answer


@given(text=st.text(max_size=30), cuts=CUTS)
@pytest.mark.shows("A.61", "D.14")
def test_the_input_of_a_custom_tool_is_unwrapped_as_it_arrives(text: str, cuts: list[int]) -> None:
    resolver = ToolCallResolver(OFFERS)
    argument_deltas = [CallDelta(1, part) for part in split_at(json.dumps({"input": text}), cuts)]
    call: list[Delta] = [CallStarted(1, "sql"), *argument_deltas, CallDone(1)]
    resolved = [delta for each in call for delta in resolver.resolve([each])]
    assert resolved[0] == CallStarted(1, "sql", "custom")
    assert resolved[-1] == CallDone(1)
    assert "".join(delta.text for delta in resolved if isinstance(delta, CallDelta)) == text
    assert all(delta.text for delta in resolved if isinstance(delta, CallDelta))


CODE = {"code_interpreter": OfferedTool("code_interpreter", "code_interpreter", recipient="python")}


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    name=st.sampled_from(["code_interpreter", "python"]),
    cuts=CUTS,
)
def test_code_is_unwrapped_as_it_arrives_and_gathered(text: str, name: str, cuts: list[int]) -> None:
    resolver, arguments = ToolCallResolver(CODE), json.dumps({"code": text})
    deltas: list[Delta] = [CallDelta(0, part) for part in split_at(arguments, cuts)]
    resolved = resolver.gather(resolver.resolve([CallStarted(0, name), *deltas, CallDone(0)]))
    assert resolved[0] == CallStarted(0, "code_interpreter", "code_interpreter")
    assert "".join([delta.text for delta in resolved if isinstance(delta, CallDelta)]) == text
    assert [call.arguments for call in resolver.server_calls] == [text]


@given(text=st.text(alphabet='{}":,\\ codexy\n', max_size=30), cuts=CUTS)
@example(text='{"code": 1}', cuts=[])
@example(text='"text".upper()', cuts=[])
@example(text='{"co', cuts=[1, 2])
@example(text="{ ", cuts=[1])
def test_code_that_gpt_oss_writes_without_json_passes_unchanged(text: str, cuts: list[int]) -> None:
    resolver = ToolCallResolver(CODE)
    deltas: list[Delta] = [CallDelta(0, part) for part in split_at(text, cuts)]
    resolved = resolver.resolve([CallStarted(0, "python"), *deltas, CallDone(0)])
    if text.strip() and not re.match(r'\s*\{\s*"code"\s*:\s*"', text):  # blanks alone are no code
        assert "".join([delta.text for delta in resolved if isinstance(delta, CallDelta)]) == text


def test_unexpected_arguments_of_a_custom_tool_pass_unchanged() -> None:
    resolved = resolve_deltas(CallStarted(0, "sql"), CallDelta(0, '{"query": "x"}'), CallDone(0))
    assert resolved[1] == CallDelta(0, '{"query": "x"}')


def test_parallel_calls_are_resolved_separately() -> None:
    resolved = resolve_deltas(
        CallStarted(0, "sql"), CallStarted(1, "exec"), CallDelta(0, '{"input": "a'), CallDelta(1, '{"input": "b'),
        CallDelta(0, 'c"}'), CallDelta(1, 'd"}'), CallDone(0), CallDone(1),
    )  # fmt: skip
    assert [delta for delta in resolved if isinstance(delta, CallDelta)] == [
        CallDelta(0, "a"), CallDelta(1, "b"), CallDelta(0, "c"), CallDelta(1, "d"),
    ]  # fmt: skip


@pytest.mark.shows("A.64")
def test_without_parallel_calls_only_the_first_declared_call_passes() -> None:
    calls: list[Delta] = [
        CallStarted(0, "nothing"), CallDone(0), CallStarted(1, "weather"), CallDelta(1, "{}"), CallDone(1),
        CallStarted(2, "weather"), CallDelta(2, "{}"), CallDone(2),
    ]  # fmt: skip
    assert resolve_deltas(*calls, parallel=False) == calls[2:5]
    assert resolve_deltas(*calls) == calls[2:]


def test_a_list_without_calls_is_returned_itself() -> None:
    deltas: list[Delta] = [Text("a"), ReasoningDelta("b")]
    assert ToolCallResolver({}).resolve(deltas) is deltas
