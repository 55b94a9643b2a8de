"""A real model and a real embedding model: a document is indexed and found by its meaning, and the answer quotes and
cites it. The model is very small: of several sentences it chooses one only if its answer is restricted to them, which
its shallow copy does as well. One sentence it copies freely, whatever the number of threads, on which its other words
depend.
"""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from antiphon.engines.embedded.known_models import DEFAULT_MODEL, EMBEDDING_MODEL
from tests.oracles.responses import check_response
from tests.support.server_process import run_server

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

DOCUMENT = [
    "The office of the northern lighthouse opens at nine in the morning.",
    "The keeper of the lighthouse is called Ragnhild, and she has two dogs.",
    "Visitors can climb the tower on every second Sunday in summer.",
]
NOTE = "The library closes at seven in the evening, and on Fridays at four."


@contextmanager
def run_client(model: str) -> Iterator[OpenAI]:
    """Run a client of a server whose context has room for passages."""
    with (
        run_server(model, "--model", EMBEDDING_MODEL.id, "--context", "2048") as server,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=200) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(shallow_model: Path) -> Iterator[OpenAI]:
    with run_client(str(shallow_model)) as client:
        yield client


@pytest.mark.shows("E.16", "E.27")
@pytest.mark.uses("openai-python", "files", "hosted tools")
def test_the_model_quotes_a_document_that_it_has_found_and_cites_it(client: OpenAI) -> None:
    store = client.vector_stores.create(name="lighthouse")
    text = "\n\n".join(DOCUMENT)
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("lighthouse.txt", io.BytesIO(text.encode()))
    )
    assert (file.status, file.last_error) == ("completed", None)
    quote = {"type": "object", "properties": {"quote": {"enum": DOCUMENT}}, "required": ["quote"]}
    fields: Any = {
        "tools": [{"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 3}],
        "tool_choice": {"type": "file_search"},
        "text": {
            "format": {"type": "json_schema", "name": "answer", "schema": {**quote, "additionalProperties": False}}
        },
    }
    response = client.responses.create(
        model=next(iter(client.models.list())).id,
        input="Who is the keeper of the lighthouse? Search, and quote the sentence.",
        include=["file_search_call.results"],
        max_tool_calls=1,
        temperature=0,
        **fields,
    )
    check_response(json.loads(response.to_json()))
    search, message = response.output
    assert search.type == "file_search_call"
    assert (search.status, [result.text for result in search.results or ()]) == ("completed", [text])
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert json.loads(part.text)["quote"] in text
    (citation,) = part.annotations
    assert citation.type == "file_citation"
    assert (citation.file_id, citation.filename, citation.index) == (file.id, "lighthouse.txt", len(part.text))


@pytest.mark.slow
@pytest.mark.shows("E.16", "E.27")
def test_the_whole_model_quotes_a_note_in_its_own_answer_and_cites_it() -> None:
    with run_client(DEFAULT_MODEL.id) as client:
        store = client.vector_stores.create(name="notes")
        file = client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("note.txt", io.BytesIO(NOTE.encode()))
        )
        response = client.responses.create(
            model=DEFAULT_MODEL.id,
            input="When does the library close? Search, and quote the sentence.",
            tools=[{"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 3}],
            tool_choice={"type": "file_search"},
            max_tool_calls=1,
            max_output_tokens=60,
            temperature=0,
        )
    body = json.loads(response.to_json())
    check_response(body)
    search, message = body["output"]
    assert (search["type"], search["status"], message["type"]) == ("file_search_call", "completed", "message")
    (part,) = message["content"]
    assert NOTE in part["text"]
    assert {(one["type"], one["file_id"]) for one in part["annotations"]} == {("file_citation", file.id)}


@pytest.mark.shows("E5.13")
def test_the_model_rewrites_the_query_of_a_search(client: OpenAI) -> None:
    store = client.vector_stores.create(name="notes")
    note = ("note.txt", io.BytesIO(NOTE.encode()))
    client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=note)
    question = "Hello! Could you please tell me at what time the library closes on Fridays?"
    page = client.vector_stores.search(store.id, query=question, rewrite_query=True)
    body = json.loads(page.to_json())
    (query,) = body["search_query"]
    assert query not in ("", question)
    assert "\n" not in query
    assert [hit["filename"] for hit in body["data"]] == ["note.txt"]
