"""Measures the embedded engines side by side: tokens per second of 1, 8 and 32 streams, the time to the first token of
a prompt of 1,000 tokens, how long other requests wait for the server's event loop while 8 streams run, and embeddings.

Each engine has a server of its own, with the built-in model, one after the other; rounds alternate. Tokens per CPU
second do not depend on what else the machine does. Waiting for the event loop is measured from outside, as p99 of
`GET /health`, so it includes the time until the operating system runs the server.
"""

import argparse
import http.client
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median, quantiles
from threading import Event
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.process_meter import cpu_ns, rss_bytes
from bench.harness.servers import Server, run_antiphon
from bench.harness.table import Row, render_table

ENGINES = ("openvino", "llamacpp")
STREAMS, TOKENS = (1, 8, 32), 64
PROMPT_TOKENS, CONTEXT = 1000, 2048
EMBEDDED, LENGTHS = 80, (400, 300, 200, 200, 150, 100, 60, 30, 15, 8)  # texts, and their words
MIN_RATE, MAX_FIRST_TOKEN, MAX_WAIT_MS = 250.0, 2.0, 10.0
_WORDS = ("river", "engine", "market", "signal", "winter", "protein", "language", "copper", "garden", "theory")


class Figures(Struct, kw_only=True):
    """The figures of one engine in one round."""

    rates: dict[int, float] = {}  # streams → tokens per second
    cpu_rates: dict[int, float] = {}  # streams → tokens per CPU second of the process tree
    first_token: float = 0.0
    first_token_cpu: float = 0.0
    wait_ms: float = 0.0
    embedding_rate: float = 0.0  # tokens per second
    embedding_cpu_rate: float = 0.0
    megabytes: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    taken: dict[str, list[Figures]] = {engine: [] for engine in ENGINES}
    for number in range(arguments.rounds):
        for engine in ENGINES:
            sys.stderr.write(f"round {number + 1} of {arguments.rounds}: {engine}\n")
            taken[engine].append(_measure(engine))
    rows = [*_make_rows(*taken.values())]
    load = os.getloadavg()[0]
    print(render_table(rows, ENGINES), f"\nload average {load:.1f} on {os.cpu_count()} cores")
    return 1 if arguments.check and any(row.misses_goal for row in rows) else 0


def _make_rows(ours: list[Figures], others: list[Figures]) -> Iterator[Row]:
    def get(figures: list[Figures], name: str, streams: int = 0) -> float:
        values = [getattr(each, name) for each in figures]
        return float(median([value[streams] if streams else value for value in values]))

    for streams in STREAMS:
        names = {"rates": "tokens per second", "cpu_rates": "tokens per CPU second"}
        for name, text in names.items():
            goal = MIN_RATE if (name, streams) == ("rates", STREAMS[-1]) else None
            figures = (get(ours, name, streams), get(others, name, streams))
            yield Row(name=f"{streams} streams: {text}", figures=figures, goal=goal, is_ratio=False, at_least=True)
    for name, text in (("embedding_rate", "tokens per second"), ("embedding_cpu_rate", "tokens per CPU second")):
        yield Row(name=f"embeddings: {text}", figures=(get(ours, name), get(others, name)), is_ratio=False)
    for name, text, limit in (
        ("first_token", f"first token of a prompt of {PROMPT_TOKENS} tokens: seconds", MAX_FIRST_TOKEN),
        ("first_token_cpu", "the same: CPU seconds", None),
        ("wait_ms", "GET /health while 8 streams run: p99 ms", MAX_WAIT_MS),
        ("megabytes", "memory of server and child: MB", None),
    ):
        yield Row(name=text, figures=(get(ours, name), get(others, name)), goal=limit, is_ratio=False)


def _measure(engine: str) -> Figures:
    figures = Figures()
    flags = ["--slots", str(STREAMS[-1]), "--context", str(CONTEXT)]
    flags += ["--llamacpp-embeddings"] if engine == "llamacpp" else []
    with run_antiphon(*flags, engine=engine, cores=range(os.cpu_count() or 1)) as server:
        _stream(server, "Hello!", 4)
        for streams in STREAMS:
            with _meter(server) as taken, ThreadPoolExecutor(streams) as pool:
                [*pool.map(lambda number: _stream(server, f"Count to {number}.", TOKENS), range(streams))]
            seconds, cpu = taken
            figures.rates[streams], figures.cpu_rates[streams] = streams * TOKENS / seconds, streams * TOKENS / cpu
        with _meter(server) as taken:
            _stream(server, " ".join(random.choices(_WORDS, k=PROMPT_TOKENS)), 1)
        figures.first_token, figures.first_token_cpu = taken
        figures.wait_ms = _measure_wait(server)
        _embed(server, 1)  # loads the model
        with _meter(server) as taken:
            tokens = _embed(server, EMBEDDED)
        figures.embedding_rate, figures.embedding_cpu_rate = tokens / taken[0], tokens / taken[1]
        figures.megabytes = rss_bytes(server.pid) / 1e6
    return figures


@contextmanager
def _meter(server: Server) -> Iterator[list[float]]:
    """Yield a list that gets the seconds and the CPU seconds of the block."""
    taken: list[float] = []
    began, cpu = time.perf_counter(), cpu_ns(server.pid)
    yield taken
    taken += [time.perf_counter() - began, (cpu_ns(server.pid) - cpu) / 1e9]


def _measure_wait(server: Server) -> float:
    ended = Event()

    def run_streams() -> None:
        with ThreadPoolExecutor(8) as pool:
            [*pool.map(lambda number: _stream(server, f"Tell {number} stories.", TOKENS), range(8))]
        ended.set()

    times: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with ThreadPoolExecutor(1) as runner:
        runner.submit(run_streams)
        while not ended.wait(0.005):
            began = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return quantiles(times, n=100)[-1]


def _embed(server: Server, texts: int) -> int:
    """Request embeddings of so many texts, in one request, and return their tokens."""
    drawn = [" ".join(random.choices(_WORDS, k=LENGTHS[number % len(LENGTHS)])) for number in range(texts)]
    content = _post(server, "/v1/embeddings", {"model": "all-minilm-l6-v2", "input": drawn})
    return int(msgspec.json.decode(content)["usage"]["total_tokens"])


def _stream(server: Server, prompt: str, tokens: int) -> None:
    """Request an answer of exactly so many tokens, and read its stream."""
    fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0.8}
    messages = [{"role": "user", "content": prompt}]
    content = _post(server, "/v1/chat/completions", {"model": "smollm2-135m-instruct", "messages": messages, **fields})
    if b'"finish_reason":"length"' not in content:
        raise RuntimeError(repr(content[-500:]))


def _post(server: Server, path: str, body: dict[str, Any]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {content[-500:]!r}")
    return content


if __name__ == "__main__":
    sys.exit(main())
