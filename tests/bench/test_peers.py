"""The table of `make bench-peers`: medians of all gateways, the ratio to smg, and whether the goal is reached."""

import msgspec
import pytest

from bench.harness.canned_answers import TOKENS
from bench.harness.load import CHAT_TOKEN, TOKEN, Client, Load
from bench.harness.table import Row, render_markdown, render_table
from bench.harness.traffic import APPLICATIONS, SESSIONS, TOOLS, Traffic
from bench.peer_cases import LoadCase, make_cases
from bench.peers import list_cases, select_cases

VARIED = Traffic(kind="varied", model="medium", seed="1")


def make_load(path: str = "/v1/responses", token: str = TOKEN, stamped: bool = False) -> Load:
    traffic = Traffic(kind="identical", model="medium", stream=True)
    return Load(port=1, path=path, traffic=traffic, connections=1, requests=1, token=token, stamped=stamped)


def make_client(load: Load) -> Client:
    return Client(load, [Client.render(load, body) for body in load.traffic.make_bodies(1)])


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row(name="", figures=(4.0, 10.0), goal=0.45), "reached"),
        (Row(name="", figures=(5.0, 10.0, 1.0), goal=0.45), "missed"),
        (Row(name="", figures=(60.0, 1.0), goal=58.0, is_ratio=False), "missed"),
        (Row(name="", figures=(50.0,), goal=58.0), "reached"),
        (Row(name="", figures=(50.0, None), goal=0.5), ""),
        (Row(name="", figures=(50.0, 10.0)), ""),
        (Row(name="", figures=(50.0, 10.0), goal=3.0, at_least=True), "reached"),
        (Row(name="", figures=(20.0, 10.0), goal=3.0, at_least=True), "missed"),
    ],
)
def test_a_row_compares_its_ratio_or_its_own_figure_with_the_goal(row: Row, verdict: str) -> None:
    assert row.verdict == verdict
    assert row.misses_goal == (verdict == "missed")


def test_the_table_names_the_columns_and_marks_missed_goals() -> None:
    rows = [
        Row(group="json", name="first", figures=(5.0, 10.0, 2.0), goal=1 / 3),
        Row(group="memory", name="second", figures=(40.0, None, 48.0), goal=58, is_ratio=False),
    ]
    heads, first, second = render_table(rows, ("Antiphon", "smg", "other")).splitlines()
    assert heads.split() == ["Antiphon", "smg", "other", "ratio", "goal"]
    assert first.split() == ["json", "first", "5", "10.0", "2", "0.50", "≤", "0.333", "missed"]
    assert second.split() == ["memory", "second", "40.0", "48.0", "≤", "58", "(ours)", "reached"]


def test_the_markdown_names_the_machine_the_commit_and_the_date() -> None:
    heading, _, heads, _, row = render_markdown([Row(name="a", figures=(1.0, 2.0))], ("Antiphon", "smg")).splitlines()
    assert heading.startswith("#### 20")
    assert "commit" in heading
    assert "cores" in heading
    assert heads == "|  | Antiphon | smg | ratio | goal |  |"
    assert row == "| a | 1 | 2 | 0.50 |  |  |"


def test_the_goals_are_those_of_real_traffic() -> None:
    goals = {(case.row, line.key): line.goal for case in make_cases() for line in case.lines if line.goal is not None}
    assert goals[("varied-json", "cpu")] == goals[("varied-stored", "cpu")] == 0.6
    assert goals[("varied-stream", "cpu")] == 0.35
    assert goals[("identical-stream", "cpu")] == 0.4
    assert goals[("agent", "cpu")] == 0.5
    assert goals[("memory", "idle")] == 58
    assert goals[("memory", "stream")] == 40
    assert goals[("fair-32", "first_p50")] == goals[("fair-128", "first_p99")] == 1.5
    assert goals[("fair-512", "spread")] == 3
    assert goals[("paced", "transit_p50")] == goals[("paced", "transit_p99")] == 1


def test_rows_can_be_selected_by_name() -> None:
    assert [case.row for case in select_cases(["agent", "varied-json"])] == ["varied-json", "agent"]
    assert [case.row for case in select_cases(None)] == [case.row for case in list_cases()]
    with pytest.raises(SystemExit, match="no row unknown"):
        select_cases(["unknown"])


def test_every_load_asks_for_a_model_of_the_fake_engine() -> None:
    for case in make_cases():
        if isinstance(case, LoadCase):
            assert case.load.traffic.model in TOKENS


def test_varied_bodies_all_differ_and_are_the_same_in_every_run() -> None:
    bodies = VARIED.make_bodies(600)
    assert len(set(bodies)) == 600
    assert bodies == VARIED.make_bodies(600)
    assert not set(bodies) & set(msgspec.structs.replace(VARIED, seed="2").make_bodies(600))


def test_varied_bodies_come_from_several_applications_and_sessions() -> None:
    bodies = [msgspec.json.decode(body) for body in VARIED.make_bodies(600)]
    assert len({msgspec.json.encode(body["tools"]) for body in bodies}) == APPLICATIONS
    assert {len(body["tools"]) for body in bodies} == {TOOLS}
    assert len({body["prompt_cache_key"] for body in bodies}) == SESSIONS
    assert {len(body["input"]) for body in bodies} == {1, 3, 5, 7, 9}
    assert len({tuple(body["client_metadata"]) for body in bodies}) > 100  # orders of the keys
    assert len({body["metadata"]["request"] for body in bodies}) == 600


def test_an_agent_sends_its_history_again_with_one_more_tool_turn() -> None:
    bodies = Traffic(kind="agent", model="short").make_bodies(2 * APPLICATIONS)
    first, second = (msgspec.json.decode(bodies[at])["input"] for at in (0, APPLICATIONS))
    assert second[: len(first)] == first
    assert [item["type"] for item in second[len(first) :]] == ["function_call", "function_call_output"]
    assert 500_000 < len(bodies[0]) < 640_000


def test_fields_that_a_server_refuses_are_omitted() -> None:
    (body,) = msgspec.structs.replace(VARIED, omit=("client_metadata",)).make_bodies(1)
    assert "client_metadata" not in msgspec.json.decode(body)


@pytest.mark.anyio
@pytest.mark.parametrize("cut", range(12, 60))
async def test_the_load_counts_each_token_once_wherever_its_bytes_are_cut(cut: int) -> None:
    for load in (make_load(), make_load("/v1/chat/completions", CHAT_TOKEN)):
        client = make_client(load)
        token = b"event: response.output_text.delta\n" if load.path == "/v1/responses" else b'"content":" t1"'
        answer = b"HTTP/1.1 200 OK\r\n\r\n" + (token + b"\n\n") * 9 + b"data: [DONE]\n\n\r\n0\r\n\r\n"
        client._first_pending = True
        for at in range(0, len(answer), cut):
            client.data_received(answer[at : at + cut])
        assert (client.tokens, client.answers, client.failed) == (9, 1, 0)


@pytest.mark.anyio
async def test_paced_tokens_are_timed_by_their_timestamps() -> None:
    client = make_client(make_load(stamped=True))
    client.data_received(b'HTTP/1.1 200 OK\r\n\r\nevent: response.output_text.delta\ndata: {"delta":" 1"}\n\n')
    assert len(client.transits) == 1
    assert client.transits[0] > 0
