"""Tenants do not share an engine's prefix cache, nor can one use another's; those of one tenant do share."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from antiphon.core.dialects.chat.request import read_chat
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from antiphon.service.chat import Chat
from antiphon.service.encryption.cache_salt import TENANT, salt
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.completion_runs import Exchanges
from tests.engines.http.stubs.chat_stub import tcp
from tests.engines.http.stubs.generation import opened
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request
from tests.service.requests import Service, decoded, result, serving

pytestmark = pytest.mark.anyio

MODELS = answer(b'{"object":"list","data":[{"id":"m"}]}')
SAYS = (
    STREAM + event(b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}') + event(b"[DONE]") + END
)
Json = dict[str, Any]


@given(st.text(), st.text(), st.none() | st.text(), st.none() | st.text())
def test_two_salts_are_equal_only_if_all_is_equal(one: str, other: str, own: str | None, another: str | None) -> None:
    same = (one, own) == (other, another)
    assert (salt(one, own) == salt(other, another)) is same


@pytest.mark.parametrize("own", ["", "x", "a:b", "\ud800", "0" * 10_000, salt("other") or ""])
def test_no_salt_of_a_client_is_that_of_another_tenant_or_of_nobody(own: str) -> None:
    """Not even if it knows the other one's."""
    assert salt("mine", own) not in {None, salt("mine"), salt("other"), salt("other", own), salt(TENANT, own), own}


def test_those_who_are_all_one_share_unless_they_wish_otherwise() -> None:
    assert salt(TENANT) is None
    assert salt(TENANT, "x") == salt(TENANT, "x") != salt(TENANT, "y")
    assert salt(TENANT, "") is not None


def test_a_salt_says_nothing_about_whose_it_is() -> None:
    made = salt("acme-corporation", "secret")
    assert made is not None
    assert len(made) == 32
    assert "acme" not in made


class Recording:
    """An engine's server that answers everything alike, and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Json] = []

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            path, _, body = (await request(reader)).partition(b" ")
            asked = json.loads(body or b"{}")
            if "stream" in asked:
                self.seen.append(asked)
                writer.write(SAYS)
            elif path.endswith(b"/models"):
                writer.write(MODELS)
            else:  # there is something at this path, and this is not how to ask for it
                writer.write(answer(b"{}", "400 Bad Request"))

    def last(self, field: str) -> Any:
        return self.seen[-1].get(field)


@asynccontextmanager
async def before(kind: str) -> AsyncIterator[tuple[Service, Recording]]:
    """A service in front of such an engine."""
    recording = Recording()
    async with tcp(recording.serve) as port, opened(f"{kind}://127.0.0.1:{port}") as engine, serving(engine) as made:
        yield made, recording


async def ask(service: Service, tenant: str, **body: Any) -> str:
    response = await result(await service.responses.create(tenant, decoded(model="m", **body)))
    assert response.status == "completed"
    return response.id


async def chat(service: Service, tenant: str, **body: Any) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    exchanges = Exchanges(service.planner, service.sessions, Tally(service.metrics))
    made = await Chat(service.planner, exchanges).create(tenant, read_chat(encode(asked), Limits()))
    try:
        await made.exchange.result()
    finally:
        await made.exchange.leave()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_every_tenant_has_a_salt_of_its_own_and_always_the_same(kind: str) -> None:
    async with before(kind) as (service, engine):
        for tenant in ("a", "b", "a"):
            await ask(service, tenant)
            await ask(service, tenant, stream=False, instructions="x", prompt_cache_key="same")
            await chat(service, tenant)
        salts = [body["cache_salt"] for body in engine.seen]
        assert salts == [salt("a")] * 3 + [salt("b")] * 3 + [salt("a")] * 3
        await ask(service, TENANT)
        await chat(service, TENANT)
        assert not [body for body in engine.seen[-2:] if "cache_salt" in body]


async def test_a_background_response_has_the_salt_of_its_tenant_too() -> None:
    async with before("vllm") as (service, engine):
        accepted = await service.responses.create("a", decoded(model="m", background=True))
        assert accepted.given is not None
        await service.jobs._tasks.settled()
        await service.sessions.drained()
        assert engine.last("cache_salt") == salt("a")


async def test_a_clients_salt_keeps_it_apart_and_never_gets_it_another_tenants_cache() -> None:
    async with before("vllm") as (service, engine):
        stolen = salt("b")
        for tenant, own in (
            ("a", "x"),
            ("a", "x"),
            ("a", "y"),
            ("b", "x"),
            ("a", stolen),
            (TENANT, stolen),
            (TENANT, "x"),
        ):
            await chat(service, tenant, cache_salt=own)
        salts = [body["cache_salt"] for body in engine.seen]
        assert salts[0] == salts[1] == salt("a", "x")
        assert len(set(salts[1:])) == 6
        assert stolen not in salts
        assert salt("a") not in salts


async def test_a_cache_key_is_not_a_salt_and_goes_to_openai_mixed_with_its_tenant() -> None:
    async with before("openai") as (service, engine):
        keys = []
        for tenant in ("a", "b", "a"):
            await ask(service, tenant, prompt_cache_key="session")
            keys.append(engine.last("prompt_cache_key"))
            assert engine.last("cache_salt") is None
        assert keys[0] == keys[2] != keys[1]
        assert "session" not in keys
        await ask(service, TENANT, prompt_cache_key="session")
        assert engine.last("prompt_cache_key") == "session"


async def test_what_one_tenant_asked_is_in_no_others_cache() -> None:
    """By what the engine says that it had computed before."""
    engine = FakeEngine()
    async with serving(engine) as service:
        long = "a prompt that is long enough to be worth keeping " * 20

        async def cached(tenant: str, **body: Any) -> int:
            response = await result(await service.responses.create(tenant, decoded(input=long, **body)))
            assert response.usage is not None
            return response.usage.input_tokens_details.cached_tokens

        assert await cached("a") == 0
        assert await cached("a") > 0
        assert await cached("b") == 0
        assert await cached(TENANT) == 0
        assert await cached(TENANT, prompt_cache_key="k") > 0
