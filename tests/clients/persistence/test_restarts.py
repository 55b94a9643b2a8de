"""Stored objects after a stop and after a kill of the server: the next server reads, resumes and continues them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import check_response
from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server

pytestmark = pytest.mark.slow

SLOW = ("--fake-tokens", "4000", "--fake-rate", "20")  # an answer takes minutes
LEASE = ("--lease-seconds", "1")
ENDED = ("completed", "incomplete", "failed", "cancelled")


def make_client(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60)


def wait_for_end(server: ServerProcess, response_id: str) -> dict[str, Any]:
    for _ in repeat_until_timeout():
        status, body = server.get(f"/v1/responses/{response_id}")
        assert status == 200, body
        response: dict[str, Any] = json.loads(body)
        if response["status"] in ENDED:
            check_response(response)
            return response
    raise AssertionError(f"{response_id} has not ended")


@pytest.mark.shows("B.1", "B.3", "B.5", "B.9", "B.12", "B.15")
def test_stored_objects_survive_a_kill(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    key = {"Idempotency-Key": "once"}
    with run_server(*flags) as server, make_client(server) as openai:
        conversation = openai.conversations.create(items=[{"role": "user", "content": "one"}])
        first = openai.responses.create(model="fake", input="remember", extra_headers=key)
        with openai.responses.create(model="fake", input="two", conversation=conversation.id, stream=True) as stream:
            events: list[Any] = [event.to_dict() for event in stream]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
    with run_server(*flags) as server, make_client(server) as openai:
        assert openai.responses.retrieve(first.id).to_dict() == first.to_dict()
        again = openai.responses.create(model="fake", input="remember", extra_headers=key)
        assert again.to_dict() == first.to_dict()
        with openai.responses.retrieve(str(events[0]["response"]["id"]), stream=True) as stream:
            assert [event.to_dict() for event in stream] == events
        items: list[Any] = [*openai.conversations.items.list(conversation.id, order="asc")]
        assert [item.content[0].text for item in items] == ["one", "two", "You said: two"]
        more = openai.responses.create(model="fake", input="more", previous_response_id=first.id)
        assert more.output_text == "You said: more"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.shows("B.7")
def test_a_background_response_is_completed_by_the_next_server(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with run_server(*flags, *SLOW, "--shutdown-grace", "0") as server:
        status, body = server.post({"model": "fake", "input": "hi", "background": True})
        assert status == 200, body
        server.process.send_signal(number)
        assert server.process.wait(60) == (0 if number == signal.SIGTERM else -number)
    with run_server(*flags) as server:
        assert wait_for_end(server, json.loads(body)["id"])["status"] == "completed"


@pytest.mark.shows("B.7")
def test_a_stopping_server_completes_background_responses_within_its_grace(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    with run_server(*flags, "--fake-tokens", "10", "--fake-rate", "20") as server:
        _, body = server.post({"model": "fake", "input": "hi", "background": True})
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    with run_server(*flags, "--fake-tokens", "1") as server:
        response = wait_for_end(server, json.loads(body)["id"])
    assert response["usage"]["output_tokens"] == 10  # the response was not run again


@pytest.mark.shows("B.7")
def test_a_background_stream_of_a_killed_server_is_closed_as_failed(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with run_server(*flags, *SLOW) as server, make_client(server) as openai:
        received: list[Any] = []
        stream = openai.responses.create(model="fake", input="hi", background=True, stream=True)
        for event in stream:
            received.append(event.to_dict())
            if event.type == "response.output_text.delta":
                break
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
        stream.close()
    response_id = received[0]["response"]["id"]
    with run_server(*flags) as server:
        response = wait_for_end(server, response_id)
        assert (response["status"], response["error"]["code"]) == ("failed", "server_restarted")
        _, answer = server.get(f"/v1/responses/{response_id}?stream=true")
    *events, done = answer.removesuffix(b"\n\n").split(b"\n\n")
    replayed = [json.loads(event.partition(b"\ndata: ")[2]) for event in events]
    assert replayed[: len(received)] == received
    assert [event["type"] for event in replayed[-2:]] == ["error", "response.failed"]
    assert done == b"data: [DONE]"


@pytest.mark.shows("B.7")
def test_a_foreground_stream_of_a_killed_server_fails_and_is_not_rerun(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with run_server(*flags, *SLOW) as server, make_client(server) as openai:
        stream = openai.responses.create(model="fake", input="hi", stream=True)
        first = next(stream)
        assert first.type == "response.created"
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
        stream.close()
    with run_server(*flags) as server:
        response = wait_for_end(server, first.response.id)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_restarted")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.shows("E5.11")
def test_files_of_vector_stores_are_indexed_by_the_next_server_once(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    texts = [f"{'Otters swim in the sea. ' * 8000}The end of {name}." for name in ("one", "two", "three")]
    with run_server(*flags) as server, make_client(server) as openai:
        files = [openai.files.create(file=("a.txt", text.encode()), purpose="assistants") for text in texts]
        store = openai.vector_stores.create(
            file_ids=[file.id for file in files],
            chunking_strategy={
                "type": "static",
                "static": {"max_chunk_size_tokens": 4096, "chunk_overlap_tokens": 0},
            },
        )
        assert openai.vector_stores.retrieve(store.id).file_counts.completed < 3
        server.process.send_signal(number)
        server.process.wait(60)
    with run_server(*flags) as server, make_client(server) as openai:
        for _ in repeat_until_timeout():
            if (counts := openai.vector_stores.retrieve(store.id).file_counts).in_progress == 0:
                break
        assert counts.completed == counts.total == 3
        for file, text in zip(files, texts, strict=True):
            chunks = openai.vector_stores.files.content(file.id, vector_store_id=store.id)
            assert "".join([chunk.text or "" for chunk in chunks]) == text
