"""Images of responses outside of their rows: kept once, joined when they are read, and deleted with the last holder."""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from time import time
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.image_generation import find_image_keys
from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.service.persistence.store_maintenance import FileSweeper
from antiphon.service.persistence.stored_images import StoredImages
from antiphon.stores.contents.database import DatabaseContents
from antiphon.stores.sql.store import Store
from tests.api.app import ApiServer, parse_events, run_api

pytestmark = pytest.mark.anyio

TENANT = DEFAULT_TENANT
TOOL = {"type": "image_generation", "partial_images": 2}


@pytest.fixture
async def server(store: Store) -> AsyncIterator[ApiServer]:
    async with run_api(store=store, image_service=("fake",)) as server:
        yield server


def queue_image(server: ApiServer) -> None:
    server.engine.says(CallStarted(0, "image_generation"), CallDelta(0, '{"prompt": "an otter"}'), CallDone(0))
    server.engine.says(Text("Here it is."))


async def create(server: ApiServer, **fields: Any) -> Any:
    """Create a response in which the model makes an image."""
    queue_image(server)
    return await server.create(**{"tools": [TOOL], **fields})


async def list_contents(store: Store) -> list[str]:
    return [key async for keys in DatabaseContents(store).list_keys(time() + 60) for key in keys]


async def test_a_row_has_references_and_every_image_is_written_once(server: ApiServer, store: Store) -> None:
    response = await create(server)
    image = response["output"][0]["result"]
    row = await store.get(TENANT, response["id"])
    assert row is not None
    assert image.encode() not in row.response
    assert len(row.packed_log or b"") < 400
    (key,) = find_image_keys(row.response)
    assert sorted(await store.list_images(TENANT, response["id"])) == sorted(await list_contents(store))
    assert len(await list_contents(store)) == 3  # with two previews
    assert b"".join(
        [piece async for piece in DatabaseContents(store).read(key, 0, len(b64decode(image)))]
    ) == b64decode(image)


@pytest.mark.parametrize("how", ["get", "list", "replay", "idempotent", "conversation", "conversation item"])
async def test_what_is_read_again_has_the_image(server: ApiServer, how: str) -> None:
    conversation = (await server.post_ok("conversations", {}))["id"]
    response = await create(server, conversation=conversation)
    made, path = response["output"][0], f"responses/{response['id']}"
    match how:
        case "get":
            found = (await server.get(path)).json()["output"][0]
        case "list":
            found = (await server.get("responses")).json()["data"][0]["output"][0]
        case "replay":
            found = parse_events(await server.get(f"{path}?stream=true"))[-1]["response"]["output"][0]
        case "idempotent":
            key, body = (
                (b"idempotency-key", b"k"),
                {"model": "fake", "input": "hi", "tools": [TOOL], "background": True},
            )
            queue_image(server)
            first = (await server.post("responses", body, key)).json()
            parse_events(await server.get(f"responses/{first['id']}?stream=true"))
            found = (await server.post("responses", body, key)).json()["output"][0]
            found = {**found, "id": made["id"]}
        case "conversation":
            items = (await server.get(f"conversations/{conversation}/items")).json()["data"]
            (found,) = [item for item in items if item["type"] == "image_generation_call"]
        case _:
            found = (await server.get(f"conversations/{conversation}/items/{made['id']}")).json()
    assert found == made


async def test_an_image_is_deleted_with_its_response_unless_a_conversation_has_it(
    server: ApiServer, store: Store
) -> None:
    response = await create(server)
    await server.delete(f"responses/{response['id']}")
    assert await list_contents(store) == []
    conversation = (await server.post_ok("conversations", {}))["id"]
    kept = await create(server, conversation=conversation)
    await server.delete(f"responses/{kept['id']}")
    assert len(await list_contents(store)) == 1  # without the previews
    items = (await server.get(f"conversations/{conversation}/items")).json()["data"]
    assert kept["output"][0] in items


async def test_content_that_a_crash_left_is_swept_and_content_in_use_is_not(server: ApiServer, store: Store) -> None:
    response, contents = await create(server), DatabaseContents(store)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"left"

    await contents.write("file-" + "0" * 32, pieces())
    before = await list_contents(store)
    await FileSweeper(store, contents).delete_unused(time() + 60)
    assert {*before} - {*await list_contents(store)} == {"file-" + "0" * 32}
    assert (await server.get(f"responses/{response['id']}")).json() == response


async def test_references_of_another_tenant_or_to_nothing_give_no_image(server: ApiServer, store: Store) -> None:
    row = await store.get(TENANT, (await create(server))["id"])
    assert row is not None
    images = StoredImages(store, DatabaseContents(store))
    assert b'"result":null' in await images.join("other", row.response)
    forged = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    for number in ("0" * 32, "f" * 32):
        item = {**forged, "result": f"antiphon-image:file-{number}:10"}
        answer = await server.post("responses", {"model": "fake", "input": [item, {"role": "user", "content": "?"}]})
        assert (answer.status, answer.error["param"]) == (400, "input[0].result")


async def test_a_continued_chain_keeps_the_image_of_a_deleted_response(server: ApiServer, store: Store) -> None:
    first = await create(server)
    second = await create(server, previous_response_id=first["id"])
    await server.delete(f"responses/{first['id']}")
    server.engine.says(Text("Yes."))
    await server.create(previous_response_id=second["id"])
    assert first["output"][0]["result"] in repr(server.engine.seen[-1].prompt)
    body = b64encode(b64decode(first["output"][0]["result"])).decode()
    assert body == first["output"][0]["result"]
