"""`include` when stored items are read: each target acts on the items of its type, and only on those."""

from base64 import b64encode
from typing import Any, get_args

import pytest

from antiphon.protocol.types.request import Includable
from tests.api.app import ApiServer, run_api
from tests.oracles.responses import check_conversation_items, check_input_items
from tests.support.media_files import png

pytestmark = pytest.mark.anyio

IMAGE_URL = "data:image/png;base64," + b64encode(png()).decode()
# For each target an item, and the path of the field that is shown only if it is included.
ITEMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "message.input_image.image_url": (
        {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]},
        ["content", 0, "image_url"],
    ),
    "computer_call_output.output.image_url": (
        {
            "type": "computer_call_output",
            "call_id": "c1",
            "output": {"type": "computer_screenshot", "image_url": IMAGE_URL},
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


def read_path(item: Any, path: list[Any]) -> Any:
    for key in path:
        item = item.get(key) if isinstance(item, dict) else item[key]
    return item


async def read_stored_items(server: ApiServer, include: list[str]) -> list[Any]:
    """Store the items in a conversation and read them back, the oldest first."""
    conversation = await server.post_ok("conversations", {"items": [item for item, _ in ITEMS.values()]})
    query = "".join(f"&include={target}" for target in include)
    page = (await server.get(f"conversations/{conversation['id']}/items?order=asc{query}")).json()
    check_conversation_items(page)
    for item in page["data"]:
        one = await server.get(f"conversations/{conversation['id']}/items/{item['id']}?{query.lstrip('&')}")
        assert one.json() == item
    items: list[Any] = page["data"]
    return items


@pytest.mark.shows("A4.7", "A4.8", "A4.9", "A4.2")
async def test_conversation_items_show_exactly_the_included_fields() -> None:
    async with run_api() as server:
        for include in ([], *[[target] for target in ITEMS], [*ITEMS], [*ALL]):
            items = await read_stored_items(server, include)
            for item, (target, (sent, path)) in zip(items, ITEMS.items(), strict=True):
                assert read_path(item, path) == (read_path(sent, path) if target in include else None), (
                    target,
                    include,
                )


@pytest.mark.shows("A4.9", "A4.2", "A.9")
async def test_input_items_show_image_urls_only_if_included() -> None:
    item, path = ITEMS["message.input_image.image_url"]
    async with run_api() as server:
        made = await server.create(input=[item])
        for query, expected in (("", None), ("?include=message.input_image.image_url", IMAGE_URL)):
            page = (await server.get(f"responses/{made['id']}/input_items{query}")).json()
            check_input_items(page)
            assert read_path(page["data"][0], path) == expected
        await server.create(previous_response_id=made["id"])
        assert IMAGE_URL in str(server.engine.seen[-1].prompt)


@pytest.mark.shows("A4.1", "A4.3")
async def test_every_include_target_is_accepted_and_an_unknown_one_is_rejected_with_the_list() -> None:
    async with run_api() as server:
        await server.create(include=[*ALL])
        answer = await server.post("responses", {"model": "fake", "input": "hi", "include": ["mind"]})
        assert (answer.status, answer.error["param"]) == (400, "include[0]")
        assert all(target in answer.error["message"] for target in ALL)
