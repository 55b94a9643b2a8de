"""`include` on what is read back: each target acts where there is such an item, and only there."""

from base64 import b64encode
from typing import Any, get_args

import pytest

from antiphon.protocol.types.request import Includable
from tests.api.app import Api, api
from tests.oracles.responses import check_conversation_items, check_input_items
from tests.support.media_files import png

pytestmark = pytest.mark.anyio

PICTURE = "data:image/png;base64," + b64encode(png()).decode()
# Of each target an item, and where it shows what it shows only to who includes it.
ITEMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "message.input_image.image_url": (
        {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
        ["content", 0, "image_url"],
    ),
    "computer_call_output.output.image_url": (
        {
            "type": "computer_call_output",
            "call_id": "c1",
            "output": {"type": "computer_screenshot", "image_url": PICTURE},
        },
        ["output", "image_url"],
    ),
    "file_search_call.results": (
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "completed",
            "queries": ["q"],
            "results": [{"file_id": "file_1", "filename": "a", "score": 0.5, "text": "so", "attributes": {"a": "b"}}],
        },
        ["results"],
    ),
    "code_interpreter_call.outputs": (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "container_id": "cntr_1",
            "code": "1",
            "outputs": [{"type": "logs", "logs": "7"}],
        },
        ["outputs"],
    ),
}
ALL = get_args(Includable)


def shown(item: Any, path: list[Any]) -> Any:
    for key in path:
        item = item.get(key) if isinstance(item, dict) else item[key]
    return item


async def kept(server: Api, include: list[str]) -> list[Any]:
    """A conversation's items as they are read, the oldest first."""
    conversation = await server.made("conversations", {"items": [item for item, _ in ITEMS.values()]})
    query = "".join(f"&include={target}" for target in include)
    page = (await server.get(f"conversations/{conversation['id']}/items?order=asc{query}")).json()
    check_conversation_items(page)
    for item in page["data"]:
        one = await server.get(f"conversations/{conversation['id']}/items/{item['id']}?{query.lstrip('&')}")
        assert one.json() == item
    items: list[Any] = page["data"]
    return items


@pytest.mark.shows("A4.7", "A4.8", "A4.9", "A4.2")
async def test_items_of_a_conversation_show_what_is_included_and_no_more() -> None:
    async with api() as server:
        for include in ([], *[[target] for target in ITEMS], [*ITEMS], [*ALL]):
            items = await kept(server, include)
            for item, (target, (given, path)) in zip(items, ITEMS.items(), strict=True):
                assert shown(item, path) == (shown(given, path) if target in include else None), (target, include)


@pytest.mark.shows("A4.9", "A4.2", "A.9")
async def test_the_input_of_a_response_shows_addresses_of_pictures_to_who_includes_them() -> None:
    item, path = ITEMS["message.input_image.image_url"]
    async with api() as server:
        made = await server.create(input=[item])
        for query, address in (("", None), ("?include=message.input_image.image_url", PICTURE)):
            page = (await server.get(f"responses/{made['id']}/input_items{query}")).json()
            check_input_items(page)
            assert shown(page["data"][0], path) == address
        await server.create(previous_response_id=made["id"])
        assert PICTURE in str(server.engine.seen[-1].prompt)


@pytest.mark.shows("A4.1", "A4.3")
async def test_every_target_is_taken_and_any_other_is_told_which_there_are() -> None:
    async with api() as server:
        await server.create(include=[*ALL])
        answer = await server.post("responses", {"model": "fake", "input": "hi", "include": ["mind"]})
        assert (answer.status, answer.error["param"]) == (400, "include[0]")
        assert all(target in answer.error["message"] for target in ALL)
