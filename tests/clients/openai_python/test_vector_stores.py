"""Vector stores with the `openai` package, sync and async, against a real server with the fake engine."""

import io
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import FileChunkingStrategyParam

from tests.clients.sdk_pages.client_pages import run_program
from tests.support.server_process import ServerProcess

CHUNKING: FileChunkingStrategyParam = {
    "type": "static",
    "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 20},
}


def make_file(text: str, name: str = "animals.txt") -> tuple[str, io.BytesIO]:
    return name, io.BytesIO(text.encode())


@pytest.mark.shows("E5.1", "E5.2", "E5.9")
def test_every_resource_of_vector_stores_works_with_the_sdk(client: OpenAI) -> None:
    stores = client.vector_stores
    store = stores.create(
        name="animals",
        description="What they do",
        expires_after={"anchor": "last_active_at", "days": 7},
        metadata={"topic": "zoo"},
    )
    file = stores.files.upload_and_poll(
        vector_store_id=store.id,
        file=make_file("Otters hold hands while they sleep."),
        attributes={"kind": "otter", "year": 2026},
        chunking_strategy=CHUNKING,
    )
    assert (file.status, file.last_error, file.attributes) == ("completed", None, {"kind": "otter", "year": 2026})
    store = stores.retrieve(store.id)
    assert (store.status, store.file_counts.completed, store.usage_bytes) == ("completed", 1, file.usage_bytes)
    [hit] = stores.search(
        store.id, query="what do otters hold?", filters={"type": "eq", "key": "kind", "value": "otter"}
    )
    assert (hit.file_id, hit.filename, hit.content[0].text) == (
        file.id,
        "animals.txt",
        "Otters hold hands while they sleep.",
    )
    [content] = stores.files.content(file.id, vector_store_id=store.id)
    assert content.text == "Otters hold hands while they sleep."
    updated = stores.files.update(file.id, vector_store_id=store.id, attributes={"kind": "bear"})
    assert updated.attributes == {"kind": "bear"}
    assert stores.files.retrieve(file.id, vector_store_id=store.id) == updated
    assert [each.id for each in stores.files.list(store.id, filter="completed")] == [file.id]
    assert stores.files.delete(file.id, vector_store_id=store.id).deleted
    renamed = stores.update(store.id, name="beasts", metadata={"a": "b"}, expires_after=None)
    assert (renamed.name, renamed.metadata, renamed.expires_after) == ("beasts", {"a": "b"}, None)
    assert store.id in [each.id for each in stores.list(limit=100)]
    assert stores.delete(store.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        stores.retrieve(store.id)
    assert caught.value.param == "vector_store_id"


@pytest.mark.shows("E5.2")
def test_batches_are_created_polled_listed_and_cancelled(client: OpenAI) -> None:
    stores = client.vector_stores
    texts = ["Bears sleep in winter.", "Cats sleep all day.", "Whales sleep upright."]
    files = [client.files.create(file=make_file(text), purpose="assistants") for text in texts]
    store = stores.create(file_ids=[files[0].id], chunking_strategy={"type": "auto"})
    batch = stores.file_batches.create_and_poll(store.id, file_ids=[file.id for file in files])
    assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 3, 3)
    assert stores.file_batches.retrieve(batch.id, vector_store_id=store.id) == batch
    page = stores.file_batches.list_files(batch.id, vector_store_id=store.id, limit=2, order="asc")
    assert {file.id for file in page} == {file.id for file in files}  # the SDK follows the pages
    other = stores.file_batches.create(
        store.id, files=[{"file_id": files[1].id, "attributes": {"a": True}, "chunking_strategy": CHUNKING}]
    )
    assert stores.file_batches.cancel(other.id, vector_store_id=store.id).status == "cancelled"
    uploaded = stores.file_batches.upload_and_poll(store.id, files=[make_file("Ants never sleep.", "ants.txt")])
    assert uploaded.status == "completed"
    assert stores.search(store.id, query=["ants", "never"]).data[0].filename == "ants.txt"


@pytest.mark.anyio
@pytest.mark.shows("E5.1", "E5.2")
async def test_the_async_client_does_the_same(async_client: AsyncOpenAI) -> None:
    stores = async_client.vector_stores
    store = await stores.create(name="async")
    file = await stores.files.upload_and_poll(vector_store_id=store.id, file=make_file("Otters hold hands."))
    assert file.status == "completed"
    batch = await stores.file_batches.create_and_poll(store.id, file_ids=[file.id])
    assert batch.status == "completed"
    assert [each.id async for each in stores.file_batches.list_files(batch.id, vector_store_id=store.id)] == [file.id]
    assert (await stores.search(store.id, query="otters")).data[0].file_id == file.id
    assert [each.text async for each in stores.files.content(file.id, vector_store_id=store.id)] == [
        "Otters hold hands."
    ]
    await stores.files.update(file.id, vector_store_id=store.id, attributes={"a": 1})
    assert [each.attributes async for each in stores.files.list(store.id)] == [{"a": 1}]
    assert (await stores.files.delete(file.id, vector_store_id=store.id)).deleted
    assert (await stores.update(store.id, name="other")).name == "other"
    assert store.id in [each.id async for each in stores.list()]
    assert (await stores.delete(store.id)).deleted


def test_lists_are_paged_in_both_directions(client: OpenAI) -> None:
    stores = client.vector_stores
    ids = [stores.create(name=f"page {number}").id for number in range(3)]
    assert [each.id for each in stores.list(order="asc", after=ids[0], limit=1)][:2] == ids[1:]
    assert [each.id for each in stores.list(order="desc", before=ids[1], limit=1).data] == [ids[2]]


def test_a_file_without_text_fails_and_errors_name_their_parameter(client: OpenAI) -> None:
    store = client.vector_stores.create()
    file = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("a.bin", b"\x1f\x8b\0\0"))
    assert file.status == "failed"
    assert file.last_error is not None
    assert file.last_error.code == "unsupported_file"
    with pytest.raises(openai.BadRequestError) as caught:
        client.vector_stores.files.create(store.id, file_id="file-unknown")
    assert caught.value.param == "file_id"
    with pytest.raises(openai.BadRequestError) as caught:
        client.vector_stores.search(store.id, query="x", max_num_results=99)
    assert caught.value.param == "max_num_results"


def test_the_program_of_the_documentation_runs(fake_server: ServerProcess, tmp_path: Path) -> None:
    output = run_program("../vector-stores.md", fake_server.port, tmp_path)
    assert output == ("completed\nmanual.txt Clean the filter once a month. Rinse it with cold water and let it dry.\n")


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.shows("E5.9", "E5.12")
def test_a_server_without_configuration_finds_passages_by_their_meaning(default_client: OpenAI) -> None:
    stores = default_client.vector_stores
    store = stores.create()
    for name, text in [("login.md", "To reset your password, open the settings."), ("soup.md", "It needs more salt.")]:
        assert stores.files.upload_and_poll(vector_store_id=store.id, file=make_file(text, name)).status == "completed"
    hits = stores.search(store.id, query="I forgot my credentials", ranking_options={"ranker": "none"}).data
    assert [hit.filename for hit in hits] == ["login.md", "soup.md"]
    assert hits[0].score > hits[1].score
