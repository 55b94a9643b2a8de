"""Cache salts: tenants neither share an engine's prefix cache nor reach another tenant's; requests of one tenant share
it.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.json import encode

from antiphon.config.areas import CacheKeyUse
from antiphon.core.dialects.chat_request import read_chat
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.service.completions import Completions
from antiphon.service.planning.planner import PlannerSettings
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.prompting.engine_fields import make_salt
from antiphon.service.tokens import InputTokenCounter
from tests.engines.http.stubs.generation import open_engine
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.service.requests import ServiceStack, decode_request, start_service, wait_for_response
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

MODELS_REPLY = json_response(b'{"object":"list","data":[{"id":"m"}]}')
STREAM_REPLY = (
    STREAM
    + sse_event(b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}')
    + sse_event(b"[DONE]")
    + END
)
Json = dict[str, Any]


@given(st.text(), st.text(), st.none() | st.text(), st.none() | st.text())
def test_salts_are_equal_only_for_equal_tenants_and_client_salts(
    one: str, other: str, own: str | None, another: str | None
) -> None:
    same = (one, own) == (other, another)
    assert (make_salt(one, own) == make_salt(other, another)) is same


@pytest.mark.parametrize("own", ["", "x", "a:b", "\ud800", "0" * 10_000, make_salt("other") or ""])
def test_no_client_salt_reproduces_the_salt_of_another_tenant_or_the_default(own: str) -> None:
    """Not even if the client knows the salt of the other tenant."""
    assert make_salt("mine", own) not in {
        None,
        make_salt("mine"),
        make_salt("other"),
        make_salt("other", own),
        make_salt(DEFAULT_TENANT, own),
        own,
    }


def test_the_default_tenant_has_no_salt_unless_the_client_sends_one() -> None:
    assert make_salt(DEFAULT_TENANT) is None
    assert make_salt(DEFAULT_TENANT, "x") == make_salt(DEFAULT_TENANT, "x") != make_salt(DEFAULT_TENANT, "y")
    assert make_salt(DEFAULT_TENANT, "") is not None


def test_a_salt_does_not_reveal_its_tenant() -> None:
    made = make_salt("acme-corporation", "secret")
    assert made is not None
    assert len(made) == 32
    assert "acme" not in made


class RecordingEngineServer:
    """An engine server that gives every request the same reply and records the requests."""

    def __init__(self) -> None:
        self.seen: list[Json] = []

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            path, _, body = (await read_request(reader)).partition(b" ")
            fields = json.loads(body or b"{}")
            if "stream" in fields:
                self.seen.append(fields)
                writer.write(STREAM_REPLY)
            elif path.endswith(b"/models"):
                writer.write(MODELS_REPLY)
            else:  # probes: the path exists, the request is invalid
                writer.write(json_response(b"{}", "400 Bad Request"))

    def get_last(self, field: str) -> Any:
        return self.seen[-1].get(field)


@asynccontextmanager
async def start_service_with_engine(
    kind: str, terms: PlannerSettings | None = None
) -> AsyncIterator[tuple[ServiceStack, RecordingEngineServer]]:
    """Start a service in front of a recording engine server."""
    recording = RecordingEngineServer()
    async with (
        serve_tcp(recording.serve) as port,
        open_engine(f"{kind}://127.0.0.1:{port}") as engine,
        start_service(engine, terms=terms) as made,
    ):
        yield made, recording


async def create_and_wait(service: ServiceStack, tenant: str, **body: Any) -> str:
    response = await wait_for_response(await service.responses.create(tenant, decode_request(model="m", **body)))
    assert response.status == "completed"
    return response.id


async def create_chat(service: ServiceStack, tenant: str, **body: Any) -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    counter = InputTokenCounter(service.planner, queue=4)
    completions = Completions(service.models, service.planner, service.detached_runs, counter)
    run, _ = await completions.create_chat(tenant, read_chat(encode(fields), Limits()))
    try:
        await run.result()
    finally:
        await run.close()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_every_tenant_has_its_own_constant_salt(kind: str) -> None:
    async with start_service_with_engine(kind) as (service, engine):
        for tenant in ("a", "b", "a"):
            await create_and_wait(service, tenant)
            await create_and_wait(service, tenant, stream=False, instructions="x", prompt_cache_key="same")
            await create_chat(service, tenant)
        salts = [body["cache_salt"] for body in engine.seen]
        assert salts == [make_salt("a")] * 3 + [make_salt("b")] * 3 + [make_salt("a")] * 3
        await create_and_wait(service, DEFAULT_TENANT)
        await create_chat(service, DEFAULT_TENANT)
        assert not [body for body in engine.seen[-2:] if "cache_salt" in body]


async def test_a_background_response_uses_the_salt_of_its_tenant() -> None:
    async with start_service_with_engine("vllm") as (service, engine):
        accepted = await service.responses.create("a", decode_request(model="m", background=True))
        assert accepted.body is not None
        await service.background_runs._tasks.wait_all()
        await service.detached_runs.tasks.wait_all()
        assert engine.get_last("cache_salt") == make_salt("a")


async def test_a_client_salt_separates_caches_and_never_reaches_another_tenant() -> None:
    async with start_service_with_engine("vllm") as (service, engine):
        stolen = make_salt("b")
        for tenant, own in (
            ("a", "x"),
            ("a", "x"),
            ("a", "y"),
            ("b", "x"),
            ("a", stolen),
            (DEFAULT_TENANT, stolen),
            (DEFAULT_TENANT, "x"),
        ):
            await create_chat(service, tenant, cache_salt=own)
        salts = [body["cache_salt"] for body in engine.seen]
        assert salts[0] == salts[1] == make_salt("a", "x")
        assert len(set(salts[1:])) == 6
        assert stolen not in salts
        assert make_salt("a") not in salts


async def test_a_prompt_cache_key_is_sent_to_openai_combined_with_the_tenant() -> None:
    async with start_service_with_engine("openai") as (service, engine):
        keys = []
        for tenant in ("a", "b", "a"):
            await create_and_wait(service, tenant, prompt_cache_key="session")
            keys.append(engine.get_last("prompt_cache_key"))
            assert engine.get_last("cache_salt") is None
        assert keys[0] == keys[2] != keys[1]
        assert "session" not in keys
        await create_and_wait(service, DEFAULT_TENANT, prompt_cache_key="session")
        assert engine.get_last("prompt_cache_key") == "session"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.shows("A.42")
async def test_a_prompt_cache_key_becomes_the_salt_if_the_operator_chooses_so(kind: str) -> None:
    terms = PlannerSettings(cache_key_use="salt", policy=RequestPolicy(compat=False))
    async with start_service_with_engine(kind, terms=terms) as (service, engine):
        for tenant, key in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), (DEFAULT_TENANT, "x")):
            accepted = await service.responses.create(tenant, decode_request(model="m", prompt_cache_key=key))
            await wait_for_response(accepted)
            assert accepted.ignored == []
        salts = [body["cache_salt"] for body in engine.seen]
        assert salts[0] == salts[1]
        assert len(set(salts[1:])) == 4
        assert not {"x", "y", make_salt("a"), make_salt("b")} & {*salts}
        await create_chat(service, "a", prompt_cache_key="x")
        assert engine.get_last("cache_salt") == salts[0]
        await create_and_wait(service, "a")
        assert engine.get_last("cache_salt") == make_salt("a")
        await create_and_wait(service, "a", prompt_cache_key="x", cache_salt="own")
        assert engine.get_last("cache_salt") == make_salt("a", "own")


@pytest.mark.parametrize(
    ("kind", "use", "ignored"),
    [
        ("vllm", "route", ["prompt_cache_key"]),
        ("vllm", "salt", []),
        ("llamacpp-server", "route", ["prompt_cache_key"]),
        ("llamacpp-server", "salt", ["prompt_cache_key"]),
        ("openai", "route", []),
        ("openai", "salt", []),
    ],
)
@pytest.mark.shows("A.19", "A.42")
async def test_a_prompt_cache_key_without_effect_is_reported(kind: str, use: CacheKeyUse, ignored: list[str]) -> None:
    async with start_service_with_engine(kind, terms=PlannerSettings(cache_key_use=use)) as (service, _):
        accepted = await service.responses.create("a", decode_request(model="m", prompt_cache_key="k"))
        assert accepted.ignored == ignored
        assert (await wait_for_response(accepted)).ignored_fields == (ignored or UNSET)


@pytest.mark.shows("A.42")
async def test_a_prompt_cache_key_selects_one_of_several_engines_and_is_not_reported() -> None:
    async with open_engine(("fake", "fake")) as pool, start_service(pool) as service:
        accepted = await service.responses.create("a", decode_request(prompt_cache_key="k"))
        assert accepted.ignored == []
        await wait_for_response(accepted)


async def test_prompts_of_one_tenant_are_not_cached_for_another() -> None:
    """Measured by the cached tokens that the engine reports."""
    engine = FakeEngine()
    async with start_service(engine) as service:
        long = "a prompt that is long enough to be worth keeping " * 20

        async def count_cached_tokens(tenant: str, **body: Any) -> int:
            response = await wait_for_response(
                await service.responses.create(tenant, decode_request(input=long, **body))
            )
            assert response.usage is not None
            return response.usage.input_tokens_details.cached_tokens

        assert await count_cached_tokens("a") == 0
        assert await count_cached_tokens("a") > 0
        assert await count_cached_tokens("b") == 0
        assert await count_cached_tokens(DEFAULT_TENANT) == 0
        assert await count_cached_tokens(DEFAULT_TENANT, prompt_cache_key="k") > 0
