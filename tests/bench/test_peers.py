"""The table of `make bench-peers`: medians of both, ratios, and the word on whether a target was reached."""

import pytest

from bench.harness.load import Client
from bench.harness.table import Row, table
from bench.peer_cases import Effort, Figures, cases, chat_case, first_load, held_load
from bench.peers import FULL, QUICK, case_rows, first_row

EFFORT = Effort(rounds=1, streams=2, requests=3, firsts=4, held=5)


def test_a_ratio_is_judged_by_its_target_and_a_figure_without_yardstick_by_itself() -> None:
    assert Row(name="", ours=4.0, yardstick=10.0, target=0.45).judged == 0.4
    assert not Row(name="", ours=4.0, yardstick=10.0, target=0.45).over
    assert Row(name="", ours=5.0, yardstick=10.0, target=0.45).over
    assert Row(name="", ours=60.0, target=58.0, beside=1.0).over
    assert not Row(name="", ours=50.0, target=58.0, beside=1.0).over
    assert not Row(name="", ours=50.0).over


def test_the_table_names_the_yardstick_and_shows_what_is_over() -> None:
    rows = [Row(name="first", ours=5.0, yardstick=10.0, target=1 / 3), Row(name="second", ours=40.0, beside=48.0)]
    heads, first, second = table(rows, "smg 1").splitlines()
    assert heads.split() == ["ours", "smg", "1", "ratio", "target"]
    assert first.split() == ["first", "5", "10.0", "0.50", "≤", "0.333", "over"]
    assert second.split() == ["second", "40.0", "48.0"]


def test_a_case_gives_the_ratio_of_medians_and_its_times() -> None:
    streams, _, paced, *_ = cases(EFFORT)
    taken = [(Figures(cpu, 1.0, 2.0), Figures(peer, 2.0, 1.0)) for cpu, peer in ((4, 10), (5, 12), (90, 11))]
    (row,) = case_rows(streams, taken)
    assert (row.ours, row.yardstick, row.target) == (5, 11, 0.45)
    cpu, p50, p99 = case_rows(paced, taken)
    assert cpu.target == 0.9
    assert (p50.judged, p50.over) == (0.5, False)
    assert (p99.judged, p99.over) == (2.0, True)


def test_what_is_added_to_the_first_token_is_halved() -> None:
    row = first_row([(0.2, 0.6), (0.3, 0.5), (0.9, 0.4)])
    assert (row.ours, row.yardstick, row.target, row.over) == (0.3, 0.5, 0.5, True)


def test_every_target_is_there() -> None:
    targets = [case.target for case in (*cases(EFFORT), chat_case(EFFORT)) if case.target is not None]
    assert [round(target, 2) for target in targets] == [0.45, 0.33, 0.9, 0.25, 0.33, 0.6]
    assert held_load(FULL).connections >= 200
    assert held_load(QUICK).connections >= 200
    assert FULL.rounds >= 3


@pytest.mark.parametrize("cut", range(12, 60))
def test_the_load_counts_each_token_once_wherever_its_bytes_are_cut(cut: int) -> None:
    for load in (cases(EFFORT)[0].load, chat_case(EFFORT).load, first_load(EFFORT)):
        client = Client(load)
        token = b"event: response.output_text.delta\n" if load.path == "/v1/responses" else b'"content":" t1"'
        answer = b"HTTP/1.1 200 OK\r\n\r\n" + (token + b"\n\n") * 9 + b"data: [DONE]\n\n\r\n0\r\n\r\n"
        client._left = 1
        for at in range(0, len(answer), cut):
            client.data_received(answer[at : at + cut])
        assert (client.tokens, client.requests) == (9, 1)


def test_tokens_that_say_when_they_were_written_are_timed() -> None:
    paced = cases(EFFORT)[2].load
    client = Client(paced)
    client.data_received(b'HTTP/1.1 200 OK\r\n\r\nevent: response.output_text.delta\ndata: {"delta":" 1"}\n\n')
    assert len(client.took) == 1
    assert client.took[0] > 0
