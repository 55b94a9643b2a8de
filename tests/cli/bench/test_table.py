"""The table and the progress line that `antiphon bench` prints."""

from typing import Any

from antiphon.cli.bench.figures import FailureCount, Figures, Measurement, Percentiles
from antiphon.cli.bench.table import render_progress, render_table


def make_figures(url: str = "http://127.0.0.1:8000", **changes: Any) -> Figures:
    defaults: dict[str, Any] = {
        "api": "responses", "model": "m", "concurrency": 1, "rate": None, "requests": 1000, "failed": 0, "failures": [],
        "seconds": 12.5, "first_token_ms": Percentiles(p50=12.345, p90=98.76, p99=1234.5, most=2000.0),
        "between_tokens_ms": Percentiles(p50=0.0, p90=4.0, p99=20.04, most=30.0),
        "answer_ms": Percentiles(p50=640.2, p90=700.0, p99=12345.6, most=13000.0), "tokens_per_second": 10240.0,
        "tokens_per_second_of_a_stream": 207.4, "requests_per_second": 80.0, "input_tokens": 9000,
        "output_tokens": 128000, "output_tokens_an_answer": 128.0, "tokens_an_event": 1.0, "counted_by": "usage",
        "client_cpu": 0.1,
    }  # fmt: skip
    return Figures(url=url, **{**defaults, **changes})


EXPECTED_TABLE = """\
http://127.0.0.1:8000 (responses, m)

                            1 at once  2.5 a second
requests                        1,000         1,000
  failed                            0             0
time to first token, ms
  p50                            12.3          12.3
  p90                            98.8          98.8
  p99                           1,234         1,234
between tokens, ms
  p50                               0             –
  p99                              20             –
whole answer, ms
  p50                             640           640
  p99                          12,346        12,346
output tokens/s
  all streams                  10,240        10,240
  one stream, p50                 207             –
requests/s                         80            80
output tokens/answer              128           128

Token counts are reported by the server."""


def test_the_levels_of_one_server_are_columns() -> None:
    sparse = make_figures(rate=2.5, between_tokens_ms=Percentiles(), tokens_per_second_of_a_stream=None)
    assert render_table([make_figures(), sparse]) == EXPECTED_TABLE


def test_several_servers_are_columns_of_each_level() -> None:
    a, b = "http://127.0.0.1:8000", "https://ai.example/v1"
    lines = render_table(
        [make_figures(a), make_figures(b), make_figures(a, concurrency=8), make_figures(b, concurrency=8)]
    ).split("\n")
    assert [line for line in lines if "at once" in line] == ["1 at once", "8 at once"]
    assert [line.split() for line in lines if "8000" in line] == [["127.0.0.1:8000", "ai.example/v1"]] * 2
    apis = render_table([make_figures(a), make_figures(b, api="chat")])
    assert "127.0.0.1:8000 responses  ai.example/v1 chat" in apis


def test_a_wide_table_is_split() -> None:
    lines = render_table([make_figures(concurrency=number) for number in range(1, 9)]).split("\n")
    heads = [line for line in lines if "at once" in line]
    assert [head.count("at once") for head in heads] == [6, 2]


def test_failures_are_listed_below_with_an_example() -> None:
    failures = [FailureCount("HTTP 429", 12, "http://127.0.0.1:8000 says 429: Too many requests are waiting.")]
    made = render_table([make_figures(failed=12, failures=failures)])
    assert (
        "127.0.0.1:8000, 1 at once: 12 × HTTP 429, for example: "
        "http://127.0.0.1:8000 says 429: Too many requests are waiting." in made
    )


def test_a_note_explains_how_tokens_were_counted() -> None:
    assert "numbers of events: the server does not report" in render_table([make_figures(counted_by="events")])
    assert "or numbers of events where it reports none" in render_table(
        [make_figures(counted_by="events"), make_figures()]
    )
    assert "Token counts are" not in render_table([make_figures(requests=3, failed=3, counted_by="events")])


def test_a_note_reports_several_tokens_per_event() -> None:
    assert "4.2 tokens per event; «between tokens» is between events" in render_table(
        [make_figures(tokens_an_event=4.2)]
    )
    assert "between events" not in render_table([make_figures(tokens_an_event=1.05)])


def test_a_note_reports_high_cpu_use_of_the_client() -> None:
    assert "the client used 62% of a core" in render_table([make_figures(client_cpu=0.62)])
    assert "of a core" not in render_table([make_figures(client_cpu=0.5)])


def test_the_progress_line_shows_count_speed_and_failures() -> None:
    tally = Measurement()
    assert (
        render_progress("http://a · 8 at once", tally, 100, 0.0) == "http://a · 8 at once · 0/100 done · 0 tokens/s now"
    )
    tally.record_failure("HTTP 429", "s")
    assert render_progress("t", tally, None, 12345.6) == "t · 1 done · 12,346 tokens/s now · 1 failed"
