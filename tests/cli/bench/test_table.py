"""The table as it is printed."""

from typing import Any

from antiphon.cli.bench.figures import Failure, Figures, Spread, Tally, table
from antiphon.cli.bench.load import told


def figures(url: str = "http://127.0.0.1:8000", **given: Any) -> Figures:
    plain: dict[str, Any] = {
        "api": "responses", "model": "m", "concurrency": 1, "rate": None, "requests": 1000, "failed": 0, "failures": [],
        "seconds": 12.5, "first_token_ms": Spread(p50=12.345, p90=98.76, p99=1234.5, most=2000.0),
        "between_tokens_ms": Spread(p50=0.0, p90=4.0, p99=20.04, most=30.0),
        "answer_ms": Spread(p50=640.2, p90=700.0, p99=12345.6, most=13000.0), "tokens_per_second": 10240.0,
        "tokens_per_second_of_a_stream": 207.4, "requests_per_second": 80.0, "input_tokens": 9000,
        "output_tokens": 128000, "output_tokens_an_answer": 128.0, "tokens_an_event": 1.0, "counted_by": "usage",
        "client_cpu": 0.1,
    }  # fmt: skip
    return Figures(url=url, **{**plain, **given})


ONE = """\
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
output tokens an answer           128           128

Tokens are as the server counts them."""


def test_the_levels_of_one_server_stand_side_by_side() -> None:
    sparse = figures(rate=2.5, between_tokens_ms=Spread(), tokens_per_second_of_a_stream=None)
    assert table([figures(), sparse]) == ONE


def test_several_servers_stand_side_by_side_at_each_level() -> None:
    a, b = "http://127.0.0.1:8000", "https://ai.example/v1"
    lines = table([figures(a), figures(b), figures(a, concurrency=8), figures(b, concurrency=8)]).split("\n")
    assert [line for line in lines if "at once" in line] == ["1 at once", "8 at once"]
    assert [line.split() for line in lines if "8000" in line] == [["127.0.0.1:8000", "ai.example/v1"]] * 2
    apis = table([figures(a), figures(b, api="chat")])
    assert "127.0.0.1:8000 responses  ai.example/v1 chat" in apis


def test_a_table_is_cut_before_it_is_too_wide() -> None:
    lines = table([figures(concurrency=number) for number in range(1, 9)]).split("\n")
    heads = [line for line in lines if "at once" in line]
    assert [head.count("at once") for head in heads] == [6, 2]


def test_failures_are_told_below_with_an_example() -> None:
    failures = [Failure("HTTP 429", 12, "http://127.0.0.1:8000 says 429: Too many requests are waiting.")]
    made = table([figures(failed=12, failures=failures)])
    assert (
        "127.0.0.1:8000, 1 at once: 12 × HTTP 429, such as: "
        "http://127.0.0.1:8000 says 429: Too many requests are waiting." in made
    )


def test_it_says_how_tokens_were_counted() -> None:
    assert "counted by events: the server does not tell" in table([figures(counted_by="events")])
    assert "and counted by events where it does not" in table([figures(counted_by="events"), figures()])
    assert "Tokens are" not in table([figures(requests=3, failed=3, counted_by="events")])


def test_it_says_when_an_event_has_several_tokens() -> None:
    assert "an event has 4.2 tokens; «between tokens» is between events" in table([figures(tokens_an_event=4.2)])
    assert "between events" not in table([figures(tokens_an_event=1.05)])


def test_it_says_when_measuring_took_much_of_a_core() -> None:
    assert "measuring took 62% of a core" in table([figures(client_cpu=0.62)])
    assert "of a core" not in table([figures(client_cpu=0.5)])


def test_the_line_tells_what_is_done_how_fast_it_is_and_what_failed() -> None:
    tally = Tally()
    assert told("http://a · 8 at once", tally, 100, 0.0) == "http://a · 8 at once · 0/100 done · 0 tokens/s now"
    tally.fail("HTTP 429", "s")
    assert told("t", tally, None, 12345.6) == "t · 1 done · 12,346 tokens/s now · 1 failed"
