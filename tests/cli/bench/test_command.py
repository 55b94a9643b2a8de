"""`antiphon bench` against servers whose pace is known, and against such as do not answer well."""

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

from antiphon.cli.bench.load import perform
from antiphon.cli.bench.plan import Level, Plan
from antiphon.cli.client import Unanswered
from antiphon.cli.commands import cli
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import StartupError
from tests.cli.process import DEADLINE, run, terminal
from tests.engines.http.stubs.chat_stub import DIALECTS, Stub, tcp
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request
from tests.support.server_process import Live, pytest_runtest_makereport, serving

__all__ = ["pytest_runtest_makereport"]

KEY = "sk-a-key-of-ours"
TOKENS, RATE, DELAY = 11, 50.0, 0.1
PACED = ("--fake-tokens", str(TOKENS), "--fake-rate", str(RATE), "--fake-delay", str(DELAY))
MODELS = answer(b'{"object":"list","data":[{"id":"m"},{"id":"other"}]}')
TRIES = 5  # of which one is enough for what a busy machine may spoil
Json = dict[str, Any]
Behaviour = Callable[[bytes, Writer], Awaitable[None] | None]


@pytest.fixture(scope="module")
def paced() -> Iterator[Live]:
    with serving("--engine", "fake", *PACED) as live:
        yield live


def measured(folder: Path, *arguments: str) -> list[Json]:
    ran = run(folder, "bench", *arguments, "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert not told["interrupted"]
    figures: list[Json] = told["figures"]
    return figures


def is_at_its_pace(figures: Json) -> bool:
    """On a busy machine nothing comes sooner; but what comes late is so much nearer to what follows it."""
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
def test_what_is_measured_is_the_pace_of_the_server(tmp_path: Path, paced: Live, api: str) -> None:
    def at_its_pace() -> bool:
        one, four = measured(tmp_path, paced.url, "--api", api, "--concurrency", "1,4", "--requests", "4")
        for figures in (one, four):
            assert (figures["api"], figures["model"], figures["requests"]) == (api, "fake", 4)
        more = [four[name] > 2 * one[name] for name in ("tokens_per_second", "requests_per_second")]
        return all([*more, is_at_its_pace(one), is_at_its_pace(four)])

    assert any(at_its_pace() for _ in range(TRIES))


@asynccontextmanager
async def answering(behave: Behaviour) -> AsyncIterator[str]:
    """The URL of a server that answers every request by `behave`, and says that it has models."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            if asked.startswith(b"/v1/models"):
                writer.write(MODELS)
            elif (told := behave(asked, writer)) is not None:
                await told

    async with tcp(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def bench_of(folder: Path, behave: Behaviour, *arguments: str) -> CompletedProcess[str]:
    async with answering(behave) as url:
        return await asyncio.to_thread(run, folder, "bench", url, *arguments)


def chat(*texts: bytes, usage: bytes = b"") -> bytes:
    said = b"".join(event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text) for text in texts)
    stop = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    return STREAM + said + stop + usage + event(b"[DONE]") + END


@pytest.mark.anyio
async def test_a_server_without_responses_is_asked_over_chat(tmp_path: Path) -> None:
    """Which is an engine's own, with all that it takes."""
    stub = Stub(DIALECTS["vllm"])
    stub.engine = FakeEngine(FakeSettings(tokens=TOKENS, rate=RATE, delay=DELAY))
    async with tcp(stub.serve) as port:
        for _ in range(TRIES):
            (one,) = await asyncio.to_thread(measured, tmp_path, f"http://127.0.0.1:{port}/v1", "--requests", "3")
            assert (one["api"], one["requests"]) == ("chat", 3)
            if is_at_its_pace(one):
                break
        else:
            raise AssertionError(one)
    assert {body["max_tokens"] for body in stub.seen} == {16, 128}  # to warm up, and to measure


@pytest.mark.anyio
async def test_tokens_are_counted_by_events_where_the_server_does_not_count(tmp_path: Path) -> None:
    def behave(asked: bytes, writer: Writer) -> None:
        writer.write(chat(b"a", b"b", b"c"))

    ran = await bench_of(tmp_path, behave, "--api", "chat", "--requests", "2", "--extra", '{"seed": 1, "stop": null}')
    assert ran.returncode == 0
    assert "Tokens are counted by events: the server does not tell their number." in ran.stdout
    assert "output tokens an answer             3\n" in ran.stdout


@pytest.mark.anyio
async def test_failures_are_counted_by_kind_and_told_once_without_the_key(tmp_path: Path) -> None:
    answers = 0

    def behave(asked: bytes, writer: Writer) -> None:
        nonlocal answers
        answers += 1
        if answers <= 2 or answers % 3 == 0:  # the first one is a probe, the second warms up
            writer.write(chat(b"a"))
        elif answers % 3 == 1:
            said = b'{"error":{"message":"Your key %b is \\u001b[31mtired."}}' % KEY.encode()
            writer.write(answer(said, "429 Too Many Requests"))
        else:
            writer.write(STREAM + event(b'{"error":{"message":"boom"}}') + END)

    ran = await bench_of(tmp_path, behave, "--api", "chat", "--requests", "9", "--key", KEY)
    assert ran.returncode == 1
    lines = [line.partition(": ")[2] for line in ran.stdout.split("\n") if " × " in line]
    assert lines[0].startswith("3 × HTTP 429, such as: http://127.0.0.1:")
    assert lines[0].endswith(" says 429: Your key *** is [31mtired.")
    assert lines[1].startswith("3 × failed in the stream: boom, such as: http://127.0.0.1:")
    assert next(line.split() for line in ran.stdout.split("\n") if "failed" in line) == ["failed", "6"]
    assert KEY not in ran.stdout + ran.stderr


@pytest.mark.anyio
async def test_at_a_rate_time_counts_from_when_a_request_was_due(tmp_path: Path) -> None:
    """Ten requests at once and one connection that takes 50 ms for each: the last one waits for half a second."""
    busy = asyncio.Lock()

    async def slow(asked: bytes, writer: Writer) -> None:
        async with busy:
            await asyncio.sleep(0.05)
        writer.write(chat(b"a"))

    wishes = ("--api", "chat", "--requests", "10", "--rate", "1000", "--warmup", "0", "--json", "-")
    for more in (("--concurrency", "1"), ()):
        began = time.monotonic()
        ran = await bench_of(tmp_path, slow, *wishes, *more)
        (figures,) = json.loads(ran.stdout)["figures"]
        assert 200 < figures["first_token_ms"]["p50"] < figures["first_token_ms"]["most"]
        assert 450 < figures["first_token_ms"]["most"] < (time.monotonic() - began) * 1000


REFUSALS: dict[str, tuple[bytes, str]] = {
    "a key": (
        answer(b'{"error":{"message":"No such key."}}', "401 Unauthorized"),
        "{url} says 401: No such key. Its key is given as --key, or as ANTIPHON_API_KEY.",
    ),
    "another model": (
        answer(b'{"error":{"message":"The model `m` does not exist."}}', "404 Not Found"),
        "{url} says 404: The model `m` does not exist.",
    ),
    "no stream": (answer(b'{"choices":[]}'), "{url} answered without a stream of events."),
    "a page": (answer(b"<html>", "502 Bad Gateway"), "{url} says 502."),
    "nonsense": (STREAM + event(b"<html>") + END, "{url} sent an event that cannot be read: "),
    "no end": (STREAM + event(b'{"choices":[]}') + END, "{url} stopped in the middle of its answer."),
    "no token": (chat(), "{url} answered without a single token."),
    "an error in the stream": (STREAM + event(b'{"error":"boom"}') + END, "{url} failed in the stream: boom."),
    "a redirect": (answer(b"", "302 Found").replace(b"\r\n", b"\r\nLocation: /v2\r\n", 1), "{url} says 302."),
}


@pytest.mark.parametrize("what", REFUSALS)
@pytest.mark.anyio
async def test_a_server_that_says_no_at_first_is_one_sentence(what: str) -> None:
    said, sentence = REFUSALS[what]

    def behave(asked: bytes, writer: Writer) -> None:
        writer.write(said if asked.startswith(b"/v1/chat") else answer(b"{}", "404 Not Found"))

    async with answering(behave) as url:
        with pytest.raises(Unanswered) as caught:
            await asyncio.to_thread(perform, Plan(levels=[Level(1)], requests=1), "auto", [(url, None)])
    assert str(caught.value).startswith(sentence.format(url=url))
    assert str(caught.value).endswith(".")


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for url, why in (("http://127.0.0.1:9", "nobody listens there"), ("http://no.invalid", "its name is not known")):
        ran = run(tmp_path, "bench", url)
        assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"antiphon: {url} cannot be reached: {why}.\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ftp://x"], "'ftp://x' is not a server's address"),
        (["http://x:y"], "is not a server's address"),
        (["http://u:p@x"], "A key does not belong into a URL"),
        (["http://x?y=1"], "is not a server's address"),
        (["http://x", "--concurrency", "1,x"], "'1,x' is not a number, nor several with commas between them."),
        (["http://x", "--concurrency", "0"], "expected from 1 to 10000."),
        (["http://x", "--requests", "1,2"], "expected one number."),
        (["http://x", "--extra", "[]"], "expected a JSON object"),
        (["http://x", "--key", "a", "--key", "b"], "There are 1 servers and 2 keys"),
        (["http://x", "--key", "a b"], "A key has characters that cannot stand in a header."),
        (["http://x", "--api", "soap"], "'soap' is not one of"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_too(arguments: list[str], says: str) -> None:
    ran = CliRunner().invoke(cli, ["bench", *arguments])
    assert ran.exit_code == 2 or isinstance(ran.exception, StartupError)
    assert says in ran.output + str(ran.exception)


def test_several_servers_take_turns_and_stand_side_by_side(tmp_path: Path, paced: Live) -> None:
    ran = run(tmp_path, "bench", paced.url, paced.v1, "--requests", "4", "--concurrency", "2", "--rounds", "2")
    assert ran.returncode == 0
    lines = ran.stdout.split("\n")
    assert lines[0] == "2 at once"
    assert lines[2].split() == [f"127.0.0.1:{paced.port}", f"127.0.0.1:{paced.port}/v1"]
    assert lines[3].split() == ["requests", "4", "4"]
    assert ran.stderr == ""  # no progress where nobody watches


def test_the_key_comes_from_the_settings_if_none_is_given(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(f'api_key = ["{KEY}"]\n')
    with serving("--engine", "fake", "--api-key", KEY) as live:
        assert run(tmp_path, "bench", live.url, "--requests", "1").returncode == 0
        ran = run(tmp_path, "bench", live.url, "--requests", "1", "--key", "sk-wrong")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "says 401" in ran.stderr
    assert "sk-wrong" not in ran.stderr


def test_at_a_terminal_a_line_tells_how_it_goes_and_an_interruption_shows_what_there_is(
    tmp_path: Path, paced: Live
) -> None:
    file = tmp_path / "figures.json"
    wishes = ("--requests", "100000", "--concurrency", "4", "--json", str(file))
    with terminal(tmp_path, "bench", paced.url, *wishes) as screen:
        screen.wait_for("4 at once · 4/100000 done · ")
        screen.wait_for("tokens/s now")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("Interrupted: this is what there is.")
        screen.wait_for("Tokens are as the server counts them.")
        assert screen.process.wait(timeout=DEADLINE) == 130
    told = json.loads(file.read_text())
    assert told["interrupted"]
    assert told["figures"][0]["requests"] >= 4
    assert told["figures"][0]["failed"] == 0
