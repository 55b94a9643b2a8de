"""The table of `make bench-peers`: medians of both servers, their ratio, and whether the target is reached."""

import pytest

from bench.harness.load import Client
from bench.harness.table import Row, render_table
from bench.peer_cases import Effort, Figures, make_cases, make_chat_case, make_first_load, make_held_load
from bench.peers import FULL, QUICK, make_case_rows, make_first_row

EFFORT = Effort(rounds=1, streams=2, requests=3, firsts=4, held=5)


def test_a_row_compares_its_ratio_or_its_own_figure_with_the_target() -> None:
    assert Row(name="", ours=4.0, baseline=10.0, target=0.45).judged_value == 0.4
    assert not Row(name="", ours=4.0, baseline=10.0, target=0.45).misses_target
    assert Row(name="", ours=5.0, baseline=10.0, target=0.45).misses_target
    assert Row(name="", ours=60.0, target=58.0, reference=1.0).misses_target
    assert not Row(name="", ours=50.0, target=58.0, reference=1.0).misses_target
    assert not Row(name="", ours=50.0).misses_target


def test_the_table_names_the_yardstick_and_marks_missed_targets() -> None:
    rows = [Row(name="first", ours=5.0, baseline=10.0, target=1 / 3), Row(name="second", ours=40.0, reference=48.0)]
    heads, first, second = render_table(rows, "smg 1").splitlines()
    assert heads.split() == ["ours", "smg", "1", "ratio", "target"]
    assert first.split() == ["first", "5", "10.0", "0.50", "≤", "0.333", "over"]
    assert second.split() == ["second", "40.0", "48.0"]


def test_a_case_reports_ratios_of_medians() -> None:
    streams, _, paced, *_ = make_cases(EFFORT)
    taken = [(Figures(cpu, 1.0, 2.0), Figures(peer, 2.0, 1.0)) for cpu, peer in ((4, 10), (5, 12), (90, 11))]
    (row,) = make_case_rows(streams, taken)
    assert (row.ours, row.baseline, row.target) == (5, 11, 0.45)
    cpu, p50, p99 = make_case_rows(paced, taken)
    assert cpu.target == 0.9
    assert (p50.judged_value, p50.misses_target) == (0.5, False)
    assert (p99.judged_value, p99.misses_target) == (2.0, True)


def test_the_first_token_target_is_half_of_the_peer() -> None:
    row = make_first_row([(0.2, 0.6), (0.3, 0.5), (0.9, 0.4)])
    assert (row.ours, row.baseline, row.target, row.misses_target) == (0.3, 0.5, 0.5, True)


def test_every_target_is_defined() -> None:
    targets = [case.target for case in (*make_cases(EFFORT), make_chat_case(EFFORT)) if case.target is not None]
    assert [round(target, 2) for target in targets] == [0.45, 0.33, 0.9, 0.25, 0.33, 0.6]
    assert make_held_load(FULL).connections >= 200
    assert make_held_load(QUICK).connections >= 200
    assert FULL.rounds >= 3


@pytest.mark.parametrize("cut", range(12, 60))
def test_the_load_counts_each_token_once_wherever_its_bytes_are_cut(cut: int) -> None:
    for load in (make_cases(EFFORT)[0].load, make_chat_case(EFFORT).load, make_first_load(EFFORT)):
        client = Client(load)
        token = b"event: response.output_text.delta\n" if load.path == "/v1/responses" else b'"content":" t1"'
        answer = b"HTTP/1.1 200 OK\r\n\r\n" + (token + b"\n\n") * 9 + b"data: [DONE]\n\n\r\n0\r\n\r\n"
        client._remaining = 1
        for at in range(0, len(answer), cut):
            client.data_received(answer[at : at + cut])
        assert (client.tokens, client.requests) == (9, 1)


def test_paced_tokens_are_timed_by_their_timestamps() -> None:
    paced = make_cases(EFFORT)[2].load
    client = Client(paced)
    client.data_received(b'HTTP/1.1 200 OK\r\n\r\nevent: response.output_text.delta\ndata: {"delta":" 1"}\n\n')
    assert len(client.durations) == 1
    assert client.durations[0] > 0
