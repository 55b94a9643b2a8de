"""The openai package against limits of keys and tenants: headers, refusals, and its own patience."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGHUP

import pytest
from openai import OpenAI, RateLimitError

from tests.support.server_process import Live, patiently, serving

KEYS = {"ada": "sk-ada-0123456789", "bob": "sk-bob-0123456789", "eve": "sk-eve-0123456789"}
SETTINGS = """
engine = "fake"
store = "memory"
api_key_file = "{keys}"

[quota]
requests_per_minute = 3
tokens_per_minute = 100000

[tenants.eve]
requests_per_minute = {eve}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    file = tmp_path / "antiphon.toml"
    file.write_text(SETTINGS.format(keys=keys, eve=60))
    return file


@pytest.fixture
def server(settings: Path) -> Iterator[Live]:
    with serving("--config", str(settings)) as live:
        yield live


def client(server: Live, tenant: str, retries: int = 0) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key=KEYS[tenant], max_retries=retries, timeout=60)


def ask(openai: OpenAI) -> Mapping[str, str]:
    return openai.responses.with_raw_response.create(model="fake", input="hi").headers


@pytest.mark.shows("H.3")
def test_each_tenant_has_its_own_and_is_told_what_is_left(server: Live) -> None:
    with client(server, "ada") as ada, client(server, "bob") as bob:
        left = [ask(ada)["x-ratelimit-remaining-requests"] for _ in range(3)]
        assert left == ["2", "1", "0"]
        with pytest.raises(RateLimitError) as caught:
            ask(ada)
        assert caught.value.code == "rate_limit_exceeded"
        assert "3 requests per minute" in caught.value.message
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 20
        assert int(caught.value.response.headers["retry-after-ms"]) <= 20_000
        with bob.responses.with_streaming_response.create(model="fake", input="hi", stream=True) as stream:
            assert stream.headers["x-ratelimit-remaining-requests"] == "2"
            assert stream.headers["x-ratelimit-limit-tokens"] == "100000"
            assert "response.completed" in stream.read().decode()


def test_it_waits_as_long_as_it_is_told_and_then_gets_its_answer(server: Live) -> None:
    """There is one more every second, so that it is refused at some time after the first sixty, and not twice."""
    with client(server, "eve", retries=2) as eve:
        for _ in patiently():
            answer = eve.responses.with_raw_response.create(model="fake", input="hi")
            if answer.retries_taken:
                break
    assert answer.retries_taken == 1
    assert answer.parse().output_text == "You said: hi"


def test_new_limits_hold_after_a_sighup(server: Live, settings: Path) -> None:
    with client(server, "eve") as eve:
        assert ask(eve)["x-ratelimit-limit-requests"] == "60"
        settings.write_text(settings.read_text().replace("requests_per_minute = 60", "requests_per_minute = 90"))
        server.process.send_signal(SIGHUP)
        for _ in patiently():
            if b"The settings were read again" in server.output():
                break
            time.sleep(0.02)
        headers = ask(eve)
        assert headers["x-ratelimit-limit-requests"] == "90"
        assert int(headers["x-ratelimit-remaining-requests"]) < 89


def test_two_servers_that_share_a_redis_share_the_limits(redis_url: str) -> None:
    flags = ("--engine", "fake", "--live", redis_url, "--quota-requests-per-minute", "20")
    with serving(*flags) as first, serving(*flags) as second:
        body, began = {"model": "fake", "input": "hi"}, time.monotonic()
        statuses = [server.post(body)[0] for _ in range(20) for server in (first, second)]
    more = (time.monotonic() - began) / 3  # time goes on: one more every three seconds
    assert 20 <= statuses.count(200) <= 24 + more
    assert statuses.count(429) == 40 - statuses.count(200)
