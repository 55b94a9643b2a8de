"""Contract suite of stores: images that are stored outside of the JSON that refers to them."""

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.image_generation import StoredImage
from antiphon.ids import new_dashed_id
from antiphon.stores.base import ItemRow, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_response,
    store_conversation,
    store_response,
)


async def store_image(store: Store, clock: Clock, previous: str | None = None) -> tuple[str, StoredImage]:
    """Store a response with an image; return its id and the reference."""
    new, reference = make_response(clock, previous=previous), StoredImage(new_dashed_id("file"), 30)
    end = replace(make_inserting_end(clock, new), images=[reference.key], image_bytes=reference.size)
    await store.finish(TENANT, end)
    return new.id, reference


def make_referring_item(reference: StoredImage) -> ItemRow:
    return replace(make_item("x"), item=msgspec.json.encode({"result": str(reference)}))


async def is_unused(store: Store, reference: StoredImage) -> bool:
    return await store.find_unused(reference.key) == [reference.key]


async def test_an_image_belongs_to_its_tenant_and_is_unused_with_its_response(store: Store, clock: Clock) -> None:
    response_id, image = await store_image(store, clock)
    assert await store.has_image(TENANT, image.key)
    assert not await store.has_image("other", image.key)
    assert await store.list_images(TENANT, response_id) == [image.key]
    assert not await is_unused(store, image)
    assert await store.delete(TENANT, response_id)
    assert await is_unused(store, image)


async def test_the_bytes_of_images_count_for_the_tenant(store: Store, clock: Clock) -> None:
    await store_response(store, clock)
    before = (await store.tenants())[TENANT][1]
    response_id, image = await store_image(store, clock)
    assert (await store.tenants())[TENANT][1] == 2 * before + image.size
    await store.delete(TENANT, response_id)
    assert (await store.tenants())[TENANT][1] == before


async def test_a_repeated_end_adds_an_image_once(store: Store, clock: Clock) -> None:
    new, key = make_response(clock), new_dashed_id("file")
    await store.begin(TENANT, new, make_claim(clock))
    for _ in range(2):
        await store.finish(TENANT, replace(make_end(clock, new), images=[key]))
    assert await store.list_images(TENANT, new.id) == [key]


@pytest.mark.parametrize("begun", [True, False])
async def test_whoever_refers_to_an_image_keeps_it(store: Store, clock: Clock, begun: bool) -> None:
    first, image = await store_image(store, clock)
    second = make_response(clock, text=str(image))
    if begun:
        await store.begin(TENANT, second, make_claim(clock))
        await store.finish(TENANT, make_end(clock, second))
    else:
        await store.finish(TENANT, make_inserting_end(clock, second))
    conversation = await store_conversation(store, clock)
    await store.add_items(TENANT, conversation, [make_referring_item(image)], 10)
    await store.delete(TENANT, first)
    await store.delete(TENANT, second.id)
    assert await store.has_image(TENANT, image.key)
    await store.delete_conversation(TENANT, conversation)
    clock.now += 10 * TTL
    while await store.sweep(RetentionBounds()):
        pass
    assert await is_unused(store, image)


async def test_a_hidden_response_keeps_its_image_for_its_descendants(store: Store, clock: Clock) -> None:
    first, image = await store_image(store, clock)
    second = await store_response(store, clock, first)
    await store.delete(TENANT, first)
    assert await store.has_image(TENANT, image.key)
    await store.delete(TENANT, second)
    assert await is_unused(store, image)


async def test_an_end_shares_its_image_with_the_conversation(store: Store, clock: Clock) -> None:
    conversation = await store_conversation(store, clock)
    new, image = make_response(clock, conversation=conversation), StoredImage(new_dashed_id("file"), 3)
    await store.begin(TENANT, new, make_claim(clock))
    end = make_end(clock, new, items=(make_referring_item(image),))
    await store.finish(TENANT, replace(end, images=[image.key]))
    assert await store.list_images(TENANT, conversation) == [image.key]


async def test_a_reference_to_the_image_of_another_tenant_gives_no_access(store: Store, clock: Clock) -> None:
    _, image = await store_image(store, clock)
    await store.finish("other", make_inserting_end(clock, make_response(clock, text=str(image))))
    assert not await store.has_image("other", image.key)
