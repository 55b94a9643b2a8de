"""Rate limits of keys and tenants with the `openai` package: headers, rejections, and the retries of the package."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGHUP

import pytest
from openai import OpenAI, RateLimitError

from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server

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
def server(settings: Path) -> Iterator[ServerProcess]:
    with run_server("--config", str(settings)) as process:
        yield process


def make_client(server: ServerProcess, tenant: str, retries: int = 0) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key=KEYS[tenant], max_retries=retries, timeout=60)


def create_response(sdk: OpenAI) -> Mapping[str, str]:
    """Create a response and return its headers."""
    return sdk.responses.with_raw_response.create(model="fake", input="hi").headers


@pytest.mark.shows("H.3")
def test_each_tenant_has_its_own_limit_and_sees_the_remaining_requests(server: ServerProcess) -> None:
    with make_client(server, "ada") as ada, make_client(server, "bob") as bob:
        remaining = [create_response(ada)["x-ratelimit-remaining-requests"] for _ in range(3)]
        assert remaining == ["2", "1", "0"]
        with pytest.raises(RateLimitError) as caught:
            create_response(ada)
        assert caught.value.code == "rate_limit_exceeded"
        assert "3 requests per minute" in caught.value.message
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 20
        assert int(caught.value.response.headers["retry-after-ms"]) <= 20_000
        with bob.responses.with_streaming_response.create(model="fake", input="hi", stream=True) as stream:
            assert stream.headers["x-ratelimit-remaining-requests"] == "2"
            assert stream.headers["x-ratelimit-limit-tokens"] == "100000"
            assert "response.completed" in stream.read().decode()


def test_the_package_waits_for_retry_after_and_then_succeeds(server: ServerProcess) -> None:
    """One request is refilled per second, so some request after the first sixty is rejected once, but not twice."""
    with make_client(server, "eve", retries=2) as eve:
        for _ in repeat_until_timeout():
            answer = eve.responses.with_raw_response.create(model="fake", input="hi")
            if answer.retries_taken:
                break
    assert answer.retries_taken == 1
    assert answer.parse().output_text == "You said: hi"


def test_new_limits_apply_after_a_sighup(server: ServerProcess, settings: Path) -> None:
    with make_client(server, "eve") as eve:
        assert create_response(eve)["x-ratelimit-limit-requests"] == "60"
        settings.write_text(settings.read_text().replace("requests_per_minute = 60", "requests_per_minute = 90"))
        server.process.send_signal(SIGHUP)
        for _ in repeat_until_timeout():
            if b"Settings reloaded" in server.read_output():
                break
        headers = create_response(eve)
        assert headers["x-ratelimit-limit-requests"] == "90"
        assert int(headers["x-ratelimit-remaining-requests"]) < 89


def test_two_servers_that_share_a_redis_share_the_limits(redis_url: str) -> None:
    flags = ("--engine", "fake", "--live", redis_url, "--quota-requests-per-minute", "20")
    with run_server(*flags) as first, run_server(*flags) as second:
        body, started = {"model": "fake", "input": "hi"}, time.monotonic()
        statuses = [server.post(body)[0] for _ in range(20) for server in (first, second)]
    refilled = (time.monotonic() - started) / 3  # one request is refilled every three seconds
    assert 20 <= statuses.count(200) <= 24 + refilled
    assert statuses.count(429) == 40 - statuses.count(200)
