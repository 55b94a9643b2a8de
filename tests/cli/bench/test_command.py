"""`antiphon bench` against servers with a fixed pace, and against servers that fail.

Covers `cli/bench/target.py`.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.cli.bench.load import run_benchmark
from antiphon.cli.bench.plan import BenchPlan, LoadLevel
from antiphon.cli.commands import cli
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import RequestFailed, StartupError
from tests.cli.process import TIMEOUT_SECONDS, open_terminal, run_antiphon
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp
from tests.support.server_process import ServerProcess, pytest_runtest_makereport, run_server

__all__ = ["pytest_runtest_makereport"]

KEY = "sk-a-key-of-ours"
TOKENS, RATE, DELAY = 11, 50.0, 0.1
PACED = ("--fake-tokens", str(TOKENS), "--fake-rate", str(RATE), "--fake-delay", str(DELAY))
MODELS = json_response(b'{"object":"list","data":[{"id":"m"},{"id":"other"}]}')
ATTEMPTS = 5  # one successful attempt is enough, since a busy machine may spoil the others
Json = dict[str, Any]
RequestHandler = Callable[[bytes, Writer], Awaitable[None] | None]


@pytest.fixture(scope="module")
def paced_server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", *PACED) as server:
        yield server


def run_bench_json(folder: Path, *arguments: str) -> list[Json]:
    ran = run_antiphon(folder, "bench", *arguments, "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    report = json.loads(ran.stdout)
    assert not report["interrupted"]
    figures: list[Json] = report["figures"]
    return figures


def has_expected_pace(figures: Json) -> bool:
    """Whether the measured times fit the pace of the server.

    On a busy machine no token arrives early, but a late token is closer to the next one.
    """
    first, between = figures["first_token_ms"]["p50"], figures["between_tokens_ms"]["p50"]
    assert first >= DELAY * 1000
    assert figures["answer_ms"]["p50"] >= (DELAY + (TOKENS - 1) / RATE) * 1000
    assert (figures["failed"], figures["counted_by"], figures["tokens_an_event"]) == (0, "usage", 1.0)
    assert figures["output_tokens"] == TOKENS * figures["requests"]
    return bool(
        first < DELAY * 1000 + 200
        and 0.5 * 1000 / RATE < between < 2.5 * 1000 / RATE
        and 0.4 * RATE < figures["tokens_per_second_of_a_stream"] < 2 * RATE
        and figures["answer_ms"]["p50"] < 1500
    )


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_measured_times_match_the_pace_of_the_server(tmp_path: Path, paced_server: ServerProcess, api: str) -> None:
    def has_pace() -> bool:
        one, four = run_bench_json(tmp_path, paced_server.url, "--api", api, "--concurrency", "1,4", "--requests", "4")
        for figures in (one, four):
            assert (figures["api"], figures["model"], figures["requests"]) == (api, "fake", 4)
        more = [four[name] > 2 * one[name] for name in ("tokens_per_second", "requests_per_second")]
        return all([*more, has_expected_pace(one), has_expected_pace(four)])

    assert any(has_pace() for _ in range(ATTEMPTS))


@asynccontextmanager
async def run_stub_server(behave: RequestHandler) -> AsyncIterator[str]:
    """Run a server that lists models and handles every other request with `behave`; yield its URL."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            if received.startswith(b"/v1/models"):
                writer.write(MODELS)
            elif (pending := behave(received, writer)) is not None:
                await pending

    async with serve_tcp(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def run_bench(folder: Path, behave: RequestHandler, *arguments: str) -> CompletedProcess[str]:
    async with run_stub_server(behave) as url:
        return await asyncio.to_thread(run_antiphon, folder, "bench", url, *arguments)


def build_chat_stream(*texts: bytes, usage: bytes = b"") -> bytes:
    chunks = b"".join(sse_event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text) for text in texts)
    stop = sse_event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    return STREAM + chunks + stop + usage + sse_event(b"[DONE]") + END


@pytest.mark.anyio
async def test_a_server_without_the_responses_api_is_measured_over_chat(tmp_path: Path) -> None:
    """The server is an engine stub that accepts all chat fields."""
    stub = EngineStub(DIALECTS["vllm"])
    stub.engine = FakeEngine(FakeSettings(tokens=TOKENS, rate=RATE, delay=DELAY))
    async with serve_tcp(stub.serve) as port:
        for _ in range(ATTEMPTS):
            (one,) = await asyncio.to_thread(run_bench_json, tmp_path, f"http://127.0.0.1:{port}/v1", "--requests", "3")
            assert (one["api"], one["requests"]) == ("chat", 3)
            if has_expected_pace(one):
                break
        else:
            raise AssertionError(one)
    assert {body["max_tokens"] for body in stub.chat_bodies} == {16, 128}  # the warm-up and the measured requests


@pytest.mark.anyio
async def test_events_are_counted_when_the_server_reports_no_usage(tmp_path: Path) -> None:
    def behave(received: bytes, writer: Writer) -> None:
        writer.write(build_chat_stream(b"a", b"b", b"c"))

    ran = await run_bench(tmp_path, behave, "--api", "chat", "--requests", "2", "--extra", '{"seed": 1, "stop": null}')
    assert ran.returncode == 0
    assert "Token counts are numbers of events: the server does not report any." in ran.stdout
    assert "output tokens/answer                3\n" in ran.stdout


@pytest.mark.anyio
async def test_failures_are_counted_by_kind_and_printed_without_the_key(tmp_path: Path) -> None:
    answers = 0

    def behave(received: bytes, writer: Writer) -> None:
        nonlocal answers
        answers += 1
        if answers <= 2 or answers % 3 == 0:  # the first request is a probe, the second a warm-up
            writer.write(build_chat_stream(b"a"))
        elif answers % 3 == 1:
            error = b'{"error":{"message":"Your key %b is \\u001b[31mtired."}}' % KEY.encode()
            writer.write(json_response(error, "429 Too Many Requests"))
        else:
            writer.write(STREAM + sse_event(b'{"error":{"message":"boom"}}') + END)

    ran = await run_bench(tmp_path, behave, "--api", "chat", "--requests", "9", "--key", KEY)
    assert ran.returncode == 1
    lines = [line.partition(": ")[2] for line in ran.stdout.split("\n") if " × " in line]
    assert lines[0].startswith("3 × HTTP 429, for example: http://127.0.0.1:")
    assert lines[0].endswith(" returned HTTP 429: Your key *** is [31mtired.")
    assert lines[1].startswith("3 × reported an error in the stream: boom, for example: http://127.0.0.1:")
    assert next(line.split() for line in ran.stdout.split("\n") if "failed" in line) == ["failed", "6"]
    assert KEY not in ran.stdout + ran.stderr


@pytest.mark.anyio
async def test_at_a_fixed_rate_times_start_when_a_request_was_due(tmp_path: Path) -> None:
    """Ten requests are due at once and each takes 50 ms on one connection, so the last one waits half a second."""
    busy = asyncio.Lock()

    async def slow(received: bytes, writer: Writer) -> None:
        async with busy:
            await asyncio.sleep(0.05)
        writer.write(build_chat_stream(b"a"))

    flags = ("--api", "chat", "--requests", "10", "--rate", "1000", "--warmup", "0", "--json", "-")
    for more in (("--concurrency", "1"), ()):
        began = time.monotonic()
        ran = await run_bench(tmp_path, slow, *flags, *more)
        (figures,) = json.loads(ran.stdout)["figures"]
        assert 200 < figures["first_token_ms"]["p50"] < figures["first_token_ms"]["most"]
        assert 450 < figures["first_token_ms"]["most"] < (time.monotonic() - began) * 1000


REJECTIONS: dict[str, tuple[bytes, str]] = {
    "unauthorized": (
        json_response(b'{"error":{"message":"No such key."}}', "401 Unauthorized"),
        "{url} returned HTTP 401: No such key. Set its key with --key or ANTIPHON_API_KEY.",
    ),
    "unknown model": (
        json_response(b'{"error":{"message":"The model `m` does not exist."}}', "404 Not Found"),
        "{url} returned HTTP 404: The model `m` does not exist.",
    ),
    "no stream": (json_response(b'{"choices":[]}'), "{url} did not respond with an event stream."),
    "html page": (json_response(b"<html>", "502 Bad Gateway"), "{url} returned HTTP 502."),
    "invalid event": (STREAM + sse_event(b"<html>") + END, "{url} sent an event that cannot be decoded: "),
    "truncated stream": (
        STREAM + sse_event(b'{"choices":[]}') + END,
        "{url} ended the stream before the end of the answer.",
    ),
    "no tokens": (build_chat_stream(), "{url} returned no tokens."),
    "an error in the stream": (
        STREAM + sse_event(b'{"error":"boom"}') + END,
        "{url} reported an error in the stream: boom.",
    ),
    "redirect": (
        json_response(b"", "302 Found").replace(b"\r\n", b"\r\nLocation: /v2\r\n", 1),
        "{url} returned HTTP 302.",
    ),
}


@pytest.mark.parametrize("case", REJECTIONS)
@pytest.mark.anyio
async def test_a_failing_first_request_raises_one_message(case: str) -> None:
    response, message = REJECTIONS[case]

    def behave(received: bytes, writer: Writer) -> None:
        writer.write(response if received.startswith(b"/v1/chat") else json_response(b"{}", "404 Not Found"))

    async with run_stub_server(behave) as url:
        with pytest.raises(RequestFailed) as caught:
            await asyncio.to_thread(run_benchmark, BenchPlan(levels=[LoadLevel(1)], requests=1), "auto", [(url, None)])
    assert str(caught.value).startswith(message.format(url=url))
    assert str(caught.value).endswith(".")


def test_an_unreachable_server_prints_one_message(tmp_path: Path) -> None:
    for url, reason in (
        ("http://127.0.0.1:9", "the connection was refused"),
        ("http://no.invalid", "its host name cannot be resolved"),
    ):
        ran = run_antiphon(tmp_path, "bench", url)
        assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"antiphon: {url} cannot be reached: {reason}.\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ftp://x"], "'ftp://x' is not a server's address"),
        (["http://x:y"], "is not a server's address"),
        (["http://u:p@x"], "The URL must not contain a key"),
        (["http://x?y=1"], "is not a server's address"),
        (["http://x", "--concurrency", "1,x"], "'x' is not a valid integer range."),
        (["http://x", "--concurrency", "0"], "0 is not in the range 1<=x<=10000."),
        (["http://x", "--requests", "1,2"], "'1,2' is not a valid integer range."),
        (["http://x", "--extra", "[]"], "expected a JSON object"),
        (["http://x", "--key", "a", "--key", "b"], "There are 1 servers and 2 keys"),
        (["http://x", "--key", "a b"], "A key has characters that are invalid in a header."),
        (["http://x", "--api", "soap"], "'soap' is not one of"),
    ],
)
def test_an_invalid_command_line_prints_one_message(arguments: list[str], expected: str) -> None:
    ran = CliRunner().invoke(cli, ["bench", *arguments])
    assert ran.exit_code == 2 or isinstance(ran.exception, StartupError)
    assert expected in ran.output + str(ran.exception)


def test_several_servers_are_measured_in_turns_and_shown_as_columns(
    tmp_path: Path, paced_server: ServerProcess
) -> None:
    ran = run_antiphon(
        tmp_path, "bench", paced_server.url, paced_server.v1, "--requests", "4", "--concurrency", "2", "--rounds", "2"
    )
    assert ran.returncode == 0
    lines = ran.stdout.split("\n")
    assert lines[0] == "2 at once"
    assert lines[2].split() == [f"127.0.0.1:{paced_server.port}", f"127.0.0.1:{paced_server.port}/v1"]
    assert lines[3].split() == ["requests", "4", "4"]
    assert ran.stderr == ""  # no progress line without a terminal


def test_the_key_is_read_from_the_settings_by_default(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(f'api_key = ["{KEY}"]\n')
    with run_server("--engine", "fake", "--api-key", KEY) as server:
        assert run_antiphon(tmp_path, "bench", server.url, "--requests", "1").returncode == 0
        ran = run_antiphon(tmp_path, "bench", server.url, "--requests", "1", "--key", "sk-wrong")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "returned HTTP 401" in ran.stderr
    assert "sk-wrong" not in ran.stderr


def test_a_terminal_shows_progress_and_an_interrupt_prints_partial_results(
    tmp_path: Path, paced_server: ServerProcess
) -> None:
    file = tmp_path / "figures.json"
    flags = ("--requests", "100000", "--concurrency", "4", "--json", str(file))
    with open_terminal(tmp_path, "bench", paced_server.url, *flags) as screen:
        screen.wait_for("4 at once · 4/100000 done · ")
        screen.wait_for("tokens/s now")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("Interrupted: partial results.")
        screen.wait_for("Token counts are reported by the server.")
        assert screen.process.wait(timeout=TIMEOUT_SECONDS) == 130
    report = json.loads(file.read_text())
    assert report["interrupted"]
    assert report["figures"][0]["requests"] >= 4
    assert report["figures"][0]["failed"] == 0
