"""A call's name says what kind of call it is; what was not declared leaves no trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Put, Text, Thought
from antiphon.protocol.types.items import ShellCall
from antiphon.render.tools.declarations import Offer
from tests.parsers.cuts import CUTS, pieces

OFFERS = {
    "weather": Offer("function", "weather"),
    "sql": Offer("custom", "sql"),
    "functions__exec": Offer("custom", "exec", "functions"),
    "a__get": Offer("function", "get", "a"),
    "b__get": Offer("function", "get", "b"),
}


def named(*deltas: Delta, parallel: bool = True) -> list[Delta]:
    return list(Declared(OFFERS, parallel).name(list(deltas)))


def test_a_function_passes_as_it_is() -> None:
    call: list[Delta] = [CallStarted(0, "weather"), CallDelta(0, "{}"), CallDone(0)]
    assert named(*call) == call


@pytest.mark.shows("E.22")
def test_the_offered_name_becomes_the_real_one() -> None:
    assert named(CallStarted(3, "a__get")) == [CallStarted(3, "get", "function", "a")]


@pytest.mark.parametrize("name", ["functions__exec", "exec", "functions.exec", "functions/exec"])
def test_a_model_may_spell_a_namespaced_name_as_models_do(name: str) -> None:
    assert named(CallStarted(0, name)) == [CallStarted(0, "exec", "custom", "functions")]


@pytest.mark.parametrize("name", ["srv__get_sum", "get_sum", "srv.get-sum", "Get-Sum"])
def test_a_model_may_confuse_hyphens_and_cases_where_only_one_tool_can_be_meant(name: str) -> None:
    offers = {**OFFERS, "srv__get-sum": Offer("mcp", "get-sum", "srv")}
    assert [*Declared(offers).name([CallStarted(0, name)])] == [CallStarted(0, "get-sum", "mcp", "srv")]
    offers["other__get_sum"] = Offer("mcp", "get_sum", "other")
    assert [*Declared(offers).name([CallStarted(0, "GET_SUM")])] == []


def test_what_the_server_runs_is_gathered_and_told_only_if_its_arguments_are() -> None:
    declared = Declared({"add": Offer("mcp", "add", "s"), "drop": Offer("mcp", "drop", "s", approval=True)})
    said: list[Delta] = [CallStarted(0, "add"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "drop"), CallDone(1)]
    told = [*declared.gather(declared.name([*said, CallStarted(2, "add")]))]
    assert [delta.key for delta in told if not isinstance(delta, Text)] == [0, 0, 0, 2]  # type: ignore[union-attr]  # calls
    assert [(wish.offer.name, wish.arguments) for wish in declared.wishes] == [("add", "{}"), ("drop", "")]


@pytest.mark.shows("E.24")
def test_a_call_of_a_tool_of_the_clients_own_is_told_as_its_item_once_it_is_whole() -> None:
    declared = Declared({"shell": Offer("shell", "shell")})
    pieces: list[Delta] = [CallStarted(0, "shell"), CallDelta(0, '{"commands":'), CallDelta(0, '["ls"]}')]
    assert [*declared.gather(declared.name(pieces))] == []
    (put,) = declared.gather(declared.name([CallDone(0)]))
    assert isinstance(put, Put)
    assert isinstance(put.item, ShellCall)
    assert put.item.action.commands == ["ls"]
    assert [*declared.gather(declared.name([CallDone(0)]))] == []
    assert not declared.wishes
    assert not declared.cut_short()
    assert declared.clients == 1


@pytest.mark.shows("D2.4")
def test_of_what_was_cut_it_has_the_beginning() -> None:
    declared = Declared({"shell": Offer("shell", "shell")})
    assert [*declared.gather(declared.name([CallStarted(0, "shell"), CallDelta(0, '{"commands": ["ls", "r')]))] == []
    (put,) = declared.cut_short()
    assert isinstance(put, Put)
    assert isinstance(put.item, ShellCall)
    assert (put.item.status, put.item.action.commands) == ("incomplete", ["ls"])


@pytest.mark.parametrize("name", ["shell", "container.exec", "container.anything", "functions.shell"])
@pytest.mark.shows("D2.2")
def test_whatever_gpt_oss_calls_in_its_container_is_for_the_first_shell(name: str) -> None:
    shells = {kind: Offer(kind, kind, recipient="container.exec") for kind in ("shell", "local_shell")}
    assert [*Declared({**OFFERS, **shells}).name([CallStarted(0, name)])] == [CallStarted(0, "shell")]
    assert [*Declared(OFFERS).name([CallStarted(0, name)])] == []


def test_another_try_gives_out_other_keys() -> None:
    declared = Declared(OFFERS)
    assert [*declared.name([CallStarted(0, "weather"), CallStarted(1, "sql")])]
    assert [*declared.again().name([CallStarted(0, "weather")])] == [CallStarted(2, "weather")]


@pytest.mark.parametrize("name", ["get", "nothing", ""])
@pytest.mark.shows("D.19")
def test_a_call_of_what_was_not_declared_is_dropped_whole(name: str) -> None:
    declared = Declared(OFFERS)
    call: list[Delta] = [Text("a"), CallStarted(0, name), CallDelta(0, "{}"), CallDone(0), Text("b")]
    assert list(declared.name(call)) == [Text("a"), Text("b")]
    assert declared.dropped == [name]


@given(text=st.text(max_size=30), cuts=CUTS)
@pytest.mark.shows("A.61", "D.14")
def test_the_input_of_a_custom_tool_is_unwrapped_as_it_arrives(text: str, cuts: list[int]) -> None:
    declared = Declared(OFFERS)
    said = [CallDelta(1, part) for part in pieces(json.dumps({"input": text}), cuts)]
    whole: list[Delta] = [CallStarted(1, "sql"), *said, CallDone(1)]
    told = [delta for each in whole for delta in declared.name([each])]
    assert told[0] == CallStarted(1, "sql", "custom")
    assert told[-1] == CallDone(1)
    assert "".join(delta.text for delta in told if isinstance(delta, CallDelta)) == text
    assert all(delta.text for delta in told if isinstance(delta, CallDelta))


def test_a_custom_tool_called_in_another_way_loses_nothing() -> None:
    told = named(CallStarted(0, "sql"), CallDelta(0, '{"query": "x"}'), CallDone(0))
    assert told[1] == CallDelta(0, '{"query": "x"}')


def test_parallel_calls_keep_apart() -> None:
    told = named(
        CallStarted(0, "sql"), CallStarted(1, "exec"), CallDelta(0, '{"input": "a'), CallDelta(1, '{"input": "b'),
        CallDelta(0, 'c"}'), CallDelta(1, 'd"}'), CallDone(0), CallDone(1),
    )  # fmt: skip
    assert [delta for delta in told if isinstance(delta, CallDelta)] == [
        CallDelta(0, "a"), CallDelta(1, "b"), CallDelta(0, "c"), CallDelta(1, "d"),
    ]  # fmt: skip


@pytest.mark.shows("A.64")
def test_only_the_first_declared_call_passes_where_parallel_calls_are_not_allowed() -> None:
    calls: list[Delta] = [
        CallStarted(0, "nothing"), CallDone(0), CallStarted(1, "weather"), CallDelta(1, "{}"), CallDone(1),
        CallStarted(2, "weather"), CallDelta(2, "{}"), CallDone(2),
    ]  # fmt: skip
    assert named(*calls, parallel=False) == calls[2:5]
    assert named(*calls) == calls[2:]


def test_where_nothing_is_called_the_same_list_comes_back() -> None:
    deltas: list[Delta] = [Text("a"), Thought("b")]
    assert Declared({}).name(deltas) is deltas
    assert list(Declared({}).name(iter(deltas))) == deltas
