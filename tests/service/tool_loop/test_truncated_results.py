"""`shorten_results`, which cuts tool results that do not fit the context."""

from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.service.tool_loop.response_turns import RESULT_LIMITS, shorten_results


def test_a_long_result_is_cut_with_a_note_and_others_are_unchanged() -> None:
    long = McpCall(id="mcp_1", server_label="s", name="t", arguments="{}", output="ab" * 1000)
    short = McpCall(id="mcp_2", server_label="s", name="t", arguments="{}", output="ab")
    parts: list[InputText | InputImage] = [InputText(text="c" * 9999)]
    shortened = shorten_results([long, short], {"mcp_2": "said", "mcp_3": parts}, 1024)
    assert shortened["mcp_1"] == "ab" * 512 + "\n[976 more characters are left out: they do not fit the context.]"
    assert (shortened["mcp_2"], shortened["mcp_3"]) == ("said", parts)


def test_the_first_limit_leaves_results_unchanged() -> None:
    results = {"mcp_1": "x" * 10**6}
    assert shorten_results([], results, RESULT_LIMITS[0]) is results
