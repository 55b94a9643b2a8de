"""One list of items: pairs are checked, and what is too long loses whole units from its beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.history.history import History, droppable, make_history, shorter, units
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.builtin_items import LocalShellAction
from antiphon.protocol.types.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputText,
    ItemReference,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    OutputText,
    Reasoning,
    Role,
    ToolSearchCall,
    ToolSearchOutput,
)


def say(role: Role, text: str = "x") -> Message:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return Message(role=role, content=[part])


def call(call_id: str) -> FunctionCall:
    return FunctionCall(call_id=call_id, name="f", arguments="{}")


def output(call_id: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output="done")


def asked(request_id: str) -> McpApprovalRequest:
    return McpApprovalRequest(id=request_id, server_label="s", name="t", arguments="{}")


def allowed(request_id: str) -> tuple[McpApprovalResponse, McpCall]:
    call = McpCall(server_label="s", name="t", arguments="{}", approval_request_id=request_id)
    return McpApprovalResponse(approval_request_id=request_id, approve=True), call


def history(*items: InputItem) -> History:
    return make_history((), items)


def test_what_came_before_stands_before_the_input_and_is_shared() -> None:
    before = (say("user"), call("c1"))
    one, other = make_history(before, [output("c1")]), make_history(before, [output("c1"), say("user")])
    assert one.items == (*before, output("c1"))
    assert all(mine is yours is given for mine, yours, given in zip(one.items, other.items, before, strict=False))


def test_an_item_is_named_by_its_place_in_the_input() -> None:
    made = make_history([say("user"), say("assistant")], [say("user"), say("user")])
    assert made.param(3, ".content[0]") == "input[1].content[0]"
    assert made.param(0) == "previous_response_id"
    assert shorter(made, 2).param(0) == "input[0]"
    talk = make_history(made.items[:2], made.items[2:], "conversation")
    assert [talk.param(index, ".content") for index in (0, 2)] == ["conversation", "input[0].content"]
    assert shorter(talk, 1).param(0) == "conversation"


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([output("c1")], "input[0].call_id"),
        ([say("user"), output("c1"), call("c1")], "input[1].call_id"),
        ([call("c1"), output("c2")], "input[1].call_id"),
        ([call("c1"), call("c1")], "input[1].call_id"),
        ([call("c1"), CustomToolCall(call_id="c1", name="g", input="")], "input[1].call_id"),
        ([call("c1"), output("c1"), output("c1")], "input[2].call_id"),
        ([CustomToolCallOutput(call_id="c1", output="")], "input[0].call_id"),
        ([asked("mcpr_1"), output("mcpr_1")], "input[1].call_id"),
        ([asked("mcpr_1"), asked("mcpr_1")], "input[1].id"),
    ],
)
def test_a_pair_that_is_none_is_refused_by_name(items: list[InputItem], param: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make_history([say("user")], items)
    assert refused.value.param == param


def test_an_output_must_say_whose_it_is() -> None:
    with pytest.raises(MissingParameter) as refused:
        history(call("c1"), FunctionCallOutput(output="x"))
    assert refused.value.param == "input[1].call_id"


@pytest.mark.parametrize(
    "items",
    [
        [call("c1")],
        [ItemReference(id="fc_1"), output("c1")],
        [ToolSearchCall(arguments={}), ToolSearchOutput(tools=[])],
        [
            LocalShellCall(id="lsh_1", call_id="c1", action=LocalShellAction(command=["ls"])),
            LocalShellCallOutput(id="lsh_1", output="x"),
        ],
    ],
)
def test_what_may_be_a_pair_passes(items: list[InputItem]) -> None:
    assert history(*items).items == tuple(items)


@pytest.mark.shows("A.28")
def test_a_unit_is_a_call_with_its_output_and_reasoning_with_what_it_led_to() -> None:
    made = history(
        say("user"),  # 0
        Reasoning(),
        call("a"),
        call("b"),
        output("b"),
        output("a"),
        Reasoning(),  # 6
        say("assistant"),
        call("c"),  # 8
        say("user"),  # 9
        output("c"),
        asked("mcpr_1"),  # 11
        *allowed("mcpr_1"),
    )
    assert units(made) == [[0], [1, 2, 3, 4, 5], [6, 7], [8, 10], [9], [11, 12, 13]]


@pytest.mark.shows("A.28")
def test_two_approvals_of_one_turn_keep_to_their_own_calls_wherever_these_stand() -> None:
    """As they lie in responses: asked for in one, answered in the input of the next, run in its output."""
    (yes, called), (also, run) = allowed("mcpr_1"), allowed("mcpr_2")
    made = history(say("user"), Reasoning(), asked("mcpr_1"), asked("mcpr_2"), also, yes, called, run, say("assistant"))
    assert units(made) == [[0], [1, 2, 5, 6], [3, 4, 7], [8]]
    for drop in range(1, droppable(made) + 1):
        left = shorter(made, drop)
        names = {item.id for item in left.items if isinstance(item, McpApprovalRequest)}
        answered = {item.approval_request_id for item in left.items if isinstance(item, McpApprovalResponse | McpCall)}
        assert names == answered


def test_a_call_that_needed_no_approval_is_a_unit_of_its_own_with_its_reasoning() -> None:
    free = McpCall(server_label="s", name="t", arguments="{}", output="42")
    made = history(say("user"), McpListTools(server_label="s", tools=[]), Reasoning(), free, free, say("assistant"))
    assert units(made) == [[0], [1], [2, 3], [4], [5]]
    kept = [shorter(made, drop).items for drop in range(droppable(made) + 1)]
    assert all(McpListTools in map(type, items) for items in kept)  # what may be called is said by it


def test_an_output_that_stands_in_a_responses_own_output_pairs_with_its_call() -> None:
    """So it does after tool_outputs: call, output and answer are of one response."""
    before = (say("user"), call("c1"), call("c2"), output("c2"), output("c1"), say("assistant"))
    made = make_history(before, [say("user")])
    assert units(made) == [[0], [1, 2, 3, 4], [5], [6]]
    with pytest.raises(InvalidValue) as refused:
        make_history(before, [output("c1")])
    assert refused.value.param == "input[0].call_id"


def test_calls_that_came_after_outputs_are_another_turn() -> None:
    assert units(history(call("a"), output("a"), call("b"), output("b"))) == [[0, 1], [2, 3]]


@pytest.mark.shows("A.28")
def test_the_oldest_units_go_first_and_what_governs_stays() -> None:
    made = history(
        say("developer"), say("user", "old"), call("a"), output("a"), AdditionalTools(tools=[]), say("user", "new"),
        call("b"), output("b"), call("c"), output("c"),
    )  # fmt: skip
    assert droppable(made) == 3
    assert [shorter(made, drop).places for drop in range(5)] == [
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        (0, 2, 3, 4, 5, 6, 7, 8, 9),
        (0, 4, 5, 6, 7, 8, 9),
        (0, 4, 5, 8, 9),
        (0, 4, 5, 8, 9),
    ]


ITEMS = st.lists(st.sampled_from(["user", "assistant", "system", "reasoning", "call", "output"]), max_size=30)


def _made(kinds: list[str], chosen: st.DataObject) -> History:
    items: list[InputItem] = []
    waiting: list[str] = []
    for number, kind in enumerate(kinds):
        match kind:
            case "call":
                items.append(call(f"c{number}"))
                waiting.append(f"c{number}")
            case "output" if waiting:
                items.append(output(waiting.pop(chosen.draw(st.integers(0, len(waiting) - 1)))))
            case "reasoning":
                items.append(Reasoning())
            case "user" | "assistant" | "system":
                items.append(say(kind))
    return history(*items)


@given(kinds=ITEMS, data=st.data())
@pytest.mark.shows("A.28")
def test_no_pair_is_ever_halved_and_more_dropped_is_never_longer(kinds: list[str], data: st.DataObject) -> None:
    made = _made(kinds, data)
    lengths = []
    for drop in range(droppable(made) + 1):
        left = shorter(made, drop)
        lengths.append(len(left.items))
        make_history((), left.items)  # an output without its call would be refused
        answered = {item.call_id for item in made.items if isinstance(item, FunctionCallOutput)}
        calls = {item.call_id for item in left.items if isinstance(item, FunctionCall)}
        assert calls & answered == {item.call_id for item in left.items if isinstance(item, FunctionCallOutput)}
        assert left.items[-1:] == made.items[-1:]
        assert [i for i in left.items if isinstance(i, Message) and i.role == "system"] == [
            i for i in made.items if isinstance(i, Message) and i.role == "system"
        ]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == len(lengths)
