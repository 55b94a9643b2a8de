"""Histories: pairs of calls and outputs are checked, and a history that is too long loses complete units from its
start.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.history.history import History, count_droppable, drop_oldest, group_units, make_history
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    Role,
    ToolSearchCall,
    ToolSearchOutput,
)
from antiphon.protocol.types.parts import InputText, OutputText


def make_message(role: Role, text: str = "x") -> Message:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return Message(role=role, content=[part])


def make_call(call_id: str) -> FunctionCall:
    return FunctionCall(call_id=call_id, name="f", arguments="{}")


def make_output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output="done")


def make_approval_request(request_id: str) -> McpApprovalRequest:
    return McpApprovalRequest(id=request_id, server_label="s", name="t", arguments="{}")


def approve(request_id: str) -> tuple[McpApprovalResponse, McpCall]:
    call = McpCall(server_label="s", name="t", arguments="{}", approval_request_id=request_id)
    return McpApprovalResponse(approval_request_id=request_id, approve=True), call


def build_history(*items: InputItem) -> History:
    return make_history((), items)


def test_earlier_items_precede_the_input_and_are_shared() -> None:
    before = (make_message("user"), make_call("c1"))
    one, other = (
        make_history(before, [make_output("c1")]),
        make_history(before, [make_output("c1"), make_message("user")]),
    )
    assert one.items == (*before, make_output("c1"))
    assert all(mine is yours is original for mine, yours, original in zip(one.items, other.items, before, strict=False))


def test_a_history_of_messages_is_known_as_such() -> None:
    assert make_history([make_message("user")], [make_message("user")]).messages_only
    assert not make_history([make_call("c1")], [make_output("c1")]).messages_only


def test_an_item_is_named_by_its_input_index() -> None:
    made = make_history([make_message("user"), make_message("assistant")], [make_message("user"), make_message("user")])
    assert made.param(3, ".content[0]") == "input[1].content[0]"
    assert made.param(0) == "previous_response_id"
    assert drop_oldest(made, 2).param(0) == "input[0]"
    conversation = make_history(made.items[:2], made.items[2:], "conversation")
    assert [conversation.param(index, ".content") for index in (0, 2)] == ["conversation", "input[0].content"]
    assert drop_oldest(conversation, 1).param(0) == "conversation"


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([make_output("c1")], "input[0].call_id"),
        ([make_message("user"), make_output("c1"), make_call("c1")], "input[1].call_id"),
        ([make_call("c1"), make_output("c2")], "input[1].call_id"),
        ([make_call("c1"), make_call("c1")], "input[1].call_id"),
        ([make_call("c1"), CustomToolCall(call_id="c1", name="g", input="")], "input[1].call_id"),
        ([make_call("c1"), make_output("c1"), make_output("c1")], "input[2].call_id"),
        ([CustomToolCallOutput(call_id="c1", output="")], "input[0].call_id"),
        ([make_approval_request("mcpr_1"), make_output("mcpr_1")], "input[1].call_id"),
        ([make_approval_request("mcpr_1"), make_approval_request("mcpr_1")], "input[1].id"),
    ],
)
def test_an_invalid_pair_is_rejected_with_its_parameter(items: list[InputItem], param: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make_history([make_message("user")], items)
    assert refused.value.param == param


def test_an_output_must_name_its_call() -> None:
    with pytest.raises(MissingParameter) as refused:
        build_history(make_call("c1"), FunctionCallOutput(output="x"))
    assert refused.value.param == "input[1].call_id"


@pytest.mark.parametrize(
    "items",
    [
        [make_call("c1")],
        [ItemReference(id="fc_1"), make_output("c1")],
        [ToolSearchCall(arguments={}), ToolSearchOutput(tools=[])],
        [
            LocalShellCall(id="lsh_1", call_id="c1", action=LocalShellAction(command=["ls"])),
            LocalShellCallOutput(id="lsh_1", output="x"),
        ],
    ],
)
def test_possible_pairs_are_accepted(items: list[InputItem]) -> None:
    assert build_history(*items).items == tuple(items)


@pytest.mark.shows("A.28")
def test_a_unit_groups_calls_with_outputs_and_reasoning_with_its_result() -> None:
    made = build_history(
        make_message("user"),  # 0
        Reasoning(),
        make_call("a"),
        make_call("b"),
        make_output("b"),
        make_output("a"),
        Reasoning(),  # 6
        make_message("assistant"),
        make_call("c"),  # 8
        make_message("user"),  # 9
        make_output("c"),
        make_approval_request("mcpr_1"),  # 11
        *approve("mcpr_1"),
    )
    assert group_units(made) == [[0], [1, 2, 3, 4, 5], [6, 7], [8, 10], [9], [11, 12, 13]]


@pytest.mark.shows("A.28")
def test_two_approvals_of_one_turn_are_grouped_with_their_own_calls() -> None:
    """The order is that of stored responses: requested in one, answered in the input of the next, run in its output."""
    (yes, called), (also, run) = approve("mcpr_1"), approve("mcpr_2")
    made = build_history(
        make_message("user"),
        Reasoning(),
        make_approval_request("mcpr_1"),
        make_approval_request("mcpr_2"),
        also,
        yes,
        called,
        run,
        make_message("assistant"),
    )
    assert group_units(made) == [[0], [1, 2, 5, 6], [3, 4, 7], [8]]
    for drop in range(1, count_droppable(made) + 1):
        shortened = drop_oldest(made, drop)
        names = {item.id for item in shortened.items if isinstance(item, McpApprovalRequest)}
        answered = {
            item.approval_request_id for item in shortened.items if isinstance(item, McpApprovalResponse | McpCall)
        }
        assert names == answered


def test_a_call_without_approval_forms_a_unit_with_its_reasoning() -> None:
    free = McpCall(server_label="s", name="t", arguments="{}", output="42")
    made = build_history(
        make_message("user"),
        McpListTools(server_label="s", tools=[]),
        Reasoning(),
        free,
        free,
        make_message("assistant"),
    )
    assert group_units(made) == [[0], [1], [2, 3], [4], [5]]
    shortened = [drop_oldest(made, drop).items for drop in range(count_droppable(made) + 1)]
    assert all(McpListTools in map(type, items) for items in shortened)  # the listing declares what may be called


def test_an_output_within_a_response_pairs_with_its_call() -> None:
    """After `tool_outputs` the call, its output and the answer belong to one response."""
    before = (
        make_message("user"),
        make_call("c1"),
        make_call("c2"),
        make_output("c2"),
        make_output("c1"),
        make_message("assistant"),
    )
    made = make_history(before, [make_message("user")])
    assert group_units(made) == [[0], [1, 2, 3, 4], [5], [6]]
    with pytest.raises(InvalidValue) as refused:
        make_history(before, [make_output("c1")])
    assert refused.value.param == "input[0].call_id"


def test_calls_after_outputs_form_another_unit() -> None:
    assert group_units(build_history(make_call("a"), make_output("a"), make_call("b"), make_output("b"))) == [
        [0, 1],
        [2, 3],
    ]


@pytest.mark.shows("A.28")
def test_the_oldest_units_are_dropped_first_and_protected_items_stay() -> None:
    made = build_history(
        make_message("developer"),
        make_message("user", "old"),
        make_call("a"),
        make_output("a"),
        AdditionalTools(tools=[]),
        make_message("user", "new"),
        make_call("b"),
        make_output("b"),
        make_call("c"),
        make_output("c"),
    )
    assert count_droppable(made) == 3
    assert [drop_oldest(made, drop).positions for drop in range(5)] == [
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        (0, 2, 3, 4, 5, 6, 7, 8, 9),
        (0, 4, 5, 6, 7, 8, 9),
        (0, 4, 5, 8, 9),
        (0, 4, 5, 8, 9),
    ]


ITEMS = st.lists(st.sampled_from(["user", "assistant", "system", "reasoning", "call", "output"]), max_size=30)


def _draw_history(kinds: list[str], chosen: st.DataObject) -> History:
    items: list[InputItem] = []
    waiting: list[str] = []
    for number, kind in enumerate(kinds):
        match kind:
            case "call":
                items.append(make_call(f"c{number}"))
                waiting.append(f"c{number}")
            case "output" if waiting:
                items.append(make_output(waiting.pop(chosen.draw(st.integers(0, len(waiting) - 1)))))
            case "reasoning":
                items.append(Reasoning())
            case "user" | "assistant" | "system":
                items.append(make_message(kind))
    return build_history(*items)


@given(kinds=ITEMS, data=st.data())
@pytest.mark.shows("A.28")
def test_dropping_never_splits_a_pair_and_always_shortens_the_history(kinds: list[str], data: st.DataObject) -> None:
    made = _draw_history(kinds, data)
    lengths = []
    for drop in range(count_droppable(made) + 1):
        shortened = drop_oldest(made, drop)
        lengths.append(len(shortened.items))
        make_history((), shortened.items)  # rejects an output without its call
        answered = {item.call_id for item in made.items if isinstance(item, FunctionCallOutput)}
        calls = {item.call_id for item in shortened.items if isinstance(item, FunctionCall)}
        assert calls & answered == {item.call_id for item in shortened.items if isinstance(item, FunctionCallOutput)}
        assert shortened.items[-1:] == made.items[-1:]
        assert [i for i in shortened.items if isinstance(i, Message) and i.role == "system"] == [
            i for i in made.items if isinstance(i, Message) and i.role == "system"
        ]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == len(lengths)
