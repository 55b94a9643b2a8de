"""Two servers on one PostgreSQL: each one streams, cancels, continues and repeats the responses of the other."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server
from tests.support.services import Postgres, Redis

pytestmark = pytest.mark.slow

SLOW = ("--engine", "fake", "--fake-tokens", "30", "--fake-rate", "30")  # one second per response
SCRIPT = """
[[reply]]
when = { contains = "for ever" }
steps = [{ say = "Well" }, { silence = true }]
"""


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def flags(
    request: pytest.FixtureRequest, postgres: Postgres, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ...]]:
    """Notifications between the servers go through PostgreSQL alone, or through Redis."""
    live_flags = ("--live", redis.url) if request.param == "redis" else ()
    script = tmp_path_factory.mktemp("replicas") / "script.toml"
    script.write_text(SCRIPT)
    with postgres.temporary_database() as url:
        yield (*SLOW, "--fake-script", str(script), "--store", url, *live_flags)


@pytest.fixture(scope="module")
def replicas(flags: tuple[str, ...]) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers. Their lease is long enough for a busy machine that delays one of them."""
    lease = ("--lease-seconds", "5")
    with run_server(*flags, *lease) as one, run_server(*flags, *lease) as other:
        yield one, other


@pytest.fixture
def clients(replicas: tuple[ServerProcess, ServerProcess]) -> Iterator[tuple[OpenAI, OpenAI]]:
    with ExitStack() as open_:
        one, other = (
            open_.enter_context(OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60))
            for server in replicas
        )
        yield one, other


@pytest.mark.shows("B.2", "B.5")
def test_a_running_response_is_streamed_by_the_other_replica(clients: tuple[OpenAI, OpenAI]) -> None:
    one, other = clients
    with one.responses.create(model="fake", input="hi", background=True, stream=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        with other.responses.retrieve(first.response.id, stream=True, starting_after=0) as joined:
            followed = [event.to_dict() for event in joined]
        events = [event.to_dict() for event in stream]
    assert followed == events
    for event in followed:
        check_event(dict(event))
    assert accumulate([first.to_dict(), *events]).status == "completed"


@pytest.mark.shows("A.7", "B.2", "B.8")
def test_a_running_response_is_cancelled_through_the_other_replica(clients: tuple[OpenAI, OpenAI]) -> None:
    one, other = clients
    with one.responses.create(model="fake", input="for ever", background=True, stream=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        cancelled = other.responses.cancel(first.response.id)
        last = list(stream)[-1]
    assert cancelled.status == "cancelled"
    assert last.type == "response.incomplete"
    assert last.response.to_dict() == cancelled.to_dict()
    assert one.responses.retrieve(cancelled.id).to_dict() == cancelled.to_dict()


@pytest.mark.shows("B.2", "B.9", "B.12", "B.22")
def test_a_stored_response_is_continued_and_repeated_by_the_other_replica(clients: tuple[OpenAI, OpenAI]) -> None:
    one, other = clients
    key = {"Idempotency-Key": "shared"}
    conversation = one.conversations.create()
    first = one.responses.create(model="fake", input="a", conversation=conversation.id, extra_headers=key)
    again = other.responses.create(model="fake", input="a", conversation=conversation.id, extra_headers=key)
    assert again.to_dict() == first.to_dict()
    second = other.responses.create(model="fake", input="b", previous_response_id=first.id)
    third = one.responses.create(model="fake", input="c", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    items = [*other.conversations.items.list(conversation.id)]
    assert len(items) == 2
    other.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        one.responses.create(model="fake", input="d", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.shows("B.2", "B.7")
def test_a_background_response_of_a_killed_replica_is_completed_by_another(
    flags: tuple[str, ...], clients: tuple[OpenAI, OpenAI]
) -> None:
    with run_server(*flags, "--lease-seconds", "1", "--fake-delay", "100") as dying:
        with OpenAI(base_url=dying.v1, api_key="unused", max_retries=0, timeout=60) as last:
            response: Any = last.responses.create(model="fake", input="hi", background=True)
        dying.process.send_signal(signal.SIGKILL)
        dying.process.wait(60)
    for _ in repeat_until_timeout():
        response = clients[1].responses.retrieve(response.id)
        if response.status not in ("queued", "in_progress"):
            break
    assert response.status == "completed"


@pytest.mark.shows("E5.11")
def test_both_replicas_index_files_once_and_search_what_the_other_has_indexed(clients: tuple[OpenAI, OpenAI]) -> None:
    one, other = clients
    texts = [f"{'Otters swim in the sea. ' * 500}The word of file {number} is word{number}." for number in range(6)]
    files = [one.files.create(file=(f"{text[-6:]}txt", text.encode()), purpose="assistants") for text in texts]
    store = one.vector_stores.create()
    batch = one.vector_stores.file_batches.create_and_poll(store.id, file_ids=[file.id for file in files])
    assert (batch.status, batch.file_counts.completed) == ("completed", 6)
    for client in clients:
        for number, file in enumerate(files):
            assert client.vector_stores.search(store.id, query=f"word{number}").data[0].file_id == file.id
    one.files.delete(files[0].id)
    assert other.vector_stores.retrieve(store.id).file_counts.total == 5
    found = other.vector_stores.search(store.id, query="word0", max_num_results=50)
    assert files[0].id not in [hit.file_id for hit in found]
