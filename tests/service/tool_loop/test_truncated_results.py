from antiphon.protocol.types.items import InputImage, InputText, McpCall
from antiphon.service.tool_loop.response_turns import STEPS, abridged


def test_what_is_longer_is_cut_and_says_so_and_the_rest_is_as_it_was() -> None:
    long = McpCall(id="mcp_1", server_label="s", name="t", arguments="{}", output="ab" * 1000)
    short = McpCall(id="mcp_2", server_label="s", name="t", arguments="{}", output="ab")
    parts: list[InputText | InputImage] = [InputText(text="c" * 9999)]
    told = abridged([long, short], {"mcp_2": "said", "mcp_3": parts}, 1024)
    assert told["mcp_1"] == "ab" * 512 + "\n[976 more characters are left out: they do not fit the context.]"
    assert (told["mcp_2"], told["mcp_3"]) == ("said", parts)


def test_at_first_all_is_told_as_it_was_said() -> None:
    said = {"mcp_1": "x" * 10**6}
    assert abridged([], said, STEPS[0]) is said
