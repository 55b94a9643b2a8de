"""image_generation through the whole server, with the fake image service: the model asks for images, the client gets
them, and the model sees them.

Covers `core/image_generation.py`, `tools/image_generation/declaration.py`, `tools/image_generation/response_images.py`
and `tools/image_generation/tool.py`.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.image_generation import ImageRequest, SourceImage
from antiphon.core.images import read_image_info
from antiphon.core.prompt import Chunk
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.image_services.fake_service import draw_png
from antiphon.tools.image_generation import response_images
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.api.containers.container_api import ContainerApi
from tests.golden.harmony.cases import encode_tokens
from tests.image_services.stub_service import StubService, encode_image
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.local_servers import serve_tcp
from tests.support.media_files import png
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
TOOL: Json = {"type": "image_generation"}
OTTER = "an otter"
PHOTO, MASK = png(), png(16, 16)
SERVICE: Json = {"image_service": ("fake",)}
EVENTS = ["output_item.added", "image_generation_call.in_progress", "image_generation_call.generating"]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with asyncio.timeout(60), run_api(**SERVICE) as server:
        yield server


def make_call(key: int = 0, /, **arguments: Any) -> list[Delta]:
    return [CallStarted(key, "image_generation"), CallDelta(key, json.dumps(arguments)), CallDone(key)]


def queue_turns(server: ApiServer, *calls: Json, answer: str = "Here it is.") -> None:
    for arguments in calls:
        server.engine.says(*make_call(**arguments))
    server.engine.says(Text(answer))


async def create(server: ApiServer, *calls: Json, **fields: Any) -> Any:
    queue_turns(server, *calls)
    response = await server.create(**{"tools": [TOOL], **fields})
    check_response(response)
    return response


async def stream(server: ApiServer, *calls: Json, **fields: Any) -> list[Json]:
    queue_turns(server, *calls)
    body = {"model": "fake", "input": "?", "tools": [TOOL], "stream": True, **fields}
    events = parse_events(await server.post("responses", body))
    for event in events:
        check_event(event)
    return events


def list_names(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def draw(prompt: str, *sources: bytes, mask: bytes | None = None, **fields: Any) -> str:
    """Return what the fake service draws, in base64."""
    images = tuple([SourceImage(source, "image/png") for source in sources])
    masked = None if mask is None else SourceImage(mask, "image/png")
    request = ImageRequest(prompt=prompt, sources=images, mask=masked, **fields)
    return b64encode(draw_png(request, 0)).decode()


def to_url(body: bytes) -> str:
    return f"data:image/png;base64,{b64encode(body).decode()}"


def show(*images: bytes, text: str = "Change it.") -> list[Json]:
    parts = [{"type": "input_image", "image_url": to_url(image)} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": text}]}]


def last_prompt(server: ApiServer) -> str:
    return repr(server.engine.seen[-1].prompt)


class BlindEngine(FakeEngine):
    """An engine whose model sees no images."""

    async def capabilities(self, model: str) -> Capabilities:
        found = await super().capabilities(model)
        return replace(found, supported_fields=found.supported_fields - {"input_image"})


@pytest.mark.shows("E.20", "E.21")
async def test_an_image_is_streamed_with_its_previews_in_the_order_of_openai(server: ApiServer) -> None:
    tool = {**TOOL, "partial_images": 2, "size": "512x256", "background": "opaque"}
    events = await stream(server, {"prompt": OTTER}, tools=[tool])
    names = list_names(events)
    previews = [event for event in events if event["type"].endswith("partial_image")]
    assert names[2:9] == [
        *EVENTS, "image_generation_call.partial_image", "image_generation_call.partial_image",
        "image_generation_call.completed", "output_item.done",
    ]  # fmt: skip
    added, done = events[2]["item"], events[8]["item"]
    assert added == {"id": done["id"], "type": "image_generation_call", "status": "in_progress"}
    assert [preview["partial_image_index"] for preview in previews] == [0, 1]
    options = {"size": "512x256", "quality": "auto", "background": "opaque", "output_format": "png"}
    assert all(preview.items() >= options.items() for preview in previews)
    assert done == {
        **options,
        "id": added["id"],
        "type": "image_generation_call",
        "status": "completed",
        "action": "generate",
        "result": draw(OTTER, size="512x256"),
        "revised_prompt": OTTER,
    }
    assert read_image_info(b64decode(previews[1]["partial_image_b64"])).width == 512
    assert len({previews[0]["partial_image_b64"], previews[1]["partial_image_b64"], done["result"]}) == 3
    assert accumulate(events).output[0].result == done["result"]  # type: ignore[union-attr]
    replayed = await server.get(f"responses/{events[-1]['response']['id']}?stream=true")
    assert parse_events(replayed) == events


async def test_the_response_shows_the_options_that_apply_as_openai_does(server: ApiServer) -> None:
    response = await create(server, tools=[{**TOOL, "output_format": "png"}])
    assert response["tools"] == [
        {
            "type": "image_generation", "n": 1, "size": "auto", "quality": "auto", "background": "auto",
            "output_format": "png", "output_compression": 100, "moderation": "auto",
        }
    ]  # fmt: skip


@pytest.mark.shows("E.20")
@pytest.mark.parametrize("mode", ["websocket", "background"])
async def test_images_are_made_on_every_transport(server: ApiServer, mode: str) -> None:
    queue_turns(server, {"prompt": OTTER})
    if mode == "websocket":
        async with open_websocket(server.app) as socket:
            response = await socket.create(tools=[TOOL])
    else:
        created = await server.create(tools=[TOOL], background=True)
        response = parse_events(await server.get(f"responses/{created['id']}?stream=true"))[-1]["response"]
    assert response["output"][0]["result"] == draw(OTTER)
    stored = (await server.get(f"responses/{response['id']}")).json()
    assert stored["output"] == response["output"]


INVALID: dict[str, tuple[Json, str]] = {
    "a size that no service takes": ({"size": "100x100"}, "size"),
    "a size without a number": ({"size": "large"}, "size"),
    "animations": ({"output_format": "gif"}, "output_format"),
    "drawings": ({"output_format": "svg"}, "output_format"),
    "a format that the service lacks": ({"output_format": "webp"}, "output_format"),
    "a quality that the service lacks": ({"quality": "high"}, "quality"),
    "an unknown model": ({"model": "other"}, "model"),
    "more than one": ({"n": 2}, "n"),
    "too many previews": ({"partial_images": 4}, "partial_images"),
    "too much compression": ({"output_compression": 101}, "output_compression"),
    "a transparent JPEG": ({"output_format": "jpeg", "background": "transparent"}, "background"),
    "planning": ({"complexity": "low"}, "complexity"),
    "frames": ({"frame_count": 3}, "frame_count"),
    "the duration of frames": ({"frame_duration_ms": 100}, "frame_duration_ms"),
    "an author of drawings": ({"svg": {"model": "m"}}, "svg"),
    "an edit of nothing": ({"action": "edit"}, "action"),
    "an unknown action": ({"action": "paint"}, "action"),
    "an empty mask": ({"input_image_mask": {}}, "input_image_mask.image_url"),
    "two masks": ({"input_image_mask": {"image_url": to_url(MASK), "file_id": "f"}}, "input_image_mask.file_id"),
    "a mask that is no image": ({"input_image_mask": {"image_url": "data:,"}}, "input_image_mask.image_url"),
    "a mask at a private address": (
        {"input_image_mask": {"image_url": "http://169.254.169.254/m.png"}}, "input_image_mask.image_url"),
    "a mask that is not stored": ({"input_image_mask": {"file_id": "file-1"}}, "input_image_mask.file_id"),
    "a mask for a new image": ({"input_image_mask": {"image_url": to_url(MASK)}, "action": "generate"},
        "input_image_mask"),
}  # fmt: skip


@pytest.mark.shows("E.20")
@pytest.mark.parametrize("case", INVALID)
async def test_an_option_that_cannot_be_honoured_is_refused_by_name_before_anything_is_stored(
    server: ApiServer, case: str
) -> None:
    options, field = INVALID[case]
    answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [{**TOOL, **options}]})
    assert (answer.status, answer.error["param"]) == (404 if field == "model" else 400, f"tools[0].{field}")
    assert (await server.get("responses")).json()["data"] == []
    assert not server.engine.seen


async def test_a_fidelity_that_has_no_effect_is_listed_as_ignored(server: ApiServer) -> None:
    response = await create(server, tools=[{**TOOL, "action": "generate", "input_fidelity": "high"}])
    assert response["ignored_fields"] == ["tools.input_fidelity"]
    assert "ignored_fields" not in await create(server, tools=[{**TOOL, "input_fidelity": "high"}])


@pytest.mark.shows("E2.3")
async def test_without_a_service_the_tool_is_refused_with_the_flag_that_enables_it() -> None:
    async with run_api() as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "tools": [TOOL]})
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
        assert "--image-service" in answer.error["message"]


async def test_the_model_chooses_what_the_declaration_leaves_open(server: ApiServer) -> None:
    response = await create(server, {"prompt": OTTER, "size": "256x512", "action": "generate"})
    assert response["output"][0]["size"] == "256x512"
    assert {"size", "action"} <= {*find_function(server)["properties"]}
    tool = {**TOOL, "size": "512x256", "action": "generate"}
    response = await create(server, {"prompt": OTTER, "size": "256x512"}, tools=[tool])
    assert response["output"][0]["size"] == "512x256"
    assert {*find_function(server)["properties"]} == {"prompt"}


def find_function(server: ApiServer) -> Any:
    prompt: Any = server.engine.seen[0].prompt
    server.engine.seen.clear()
    (tool,) = prompt.tools
    return tool["function"]["parameters"]


@pytest.mark.shows("E.20")
@pytest.mark.parametrize(
    ("prompt", "code"),
    [("[fake fail]", None), ("[fake down]", None), ("[fake page]", None), ("[fake block]", "moderation_blocked")],
)
async def test_a_failure_is_an_item_with_an_error_that_the_model_reads(
    server: ApiServer, prompt: str, code: str | None
) -> None:
    events = await stream(server, {"prompt": prompt})
    names = list_names(events)
    assert names[2:6] == [*EVENTS, "output_item.done"]
    failed, message = events[-1]["response"]["output"]
    assert (failed["status"], failed["result"]) == ("failed", None)
    assert failed["error"].keys() == {"code", "message", "param", "type"}
    assert code in (None, failed["error"]["code"])
    assert f"Error: {failed['error']['message']}" in last_prompt(server)
    assert message["content"][0]["text"] == "Here it is."
    again = await create(server, previous_response_id=events[-1]["response"]["id"])
    assert again["status"] == "completed"
    assert f"Error: {failed['error']['message']}" in last_prompt(server)


@pytest.mark.parametrize(
    "arguments", [{}, {"prompt": ""}, {"prompt": OTTER, "size": "100x100"}, {"prompt": OTTER, "action": "edit"}]
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(server: ApiServer, arguments: Json) -> None:
    response = await create(server, arguments)
    assert [item["status"] for item in response["output"]] == ["failed", "completed"]
    assert "Error: " in last_prompt(server)
    error = response["output"][0]["error"]
    assert (error["code"], error["type"]) == ("invalid_value", "invalid_request_error")


async def test_max_tool_calls_counts_images(server: ApiServer) -> None:
    server.engine.says(*make_call(0, prompt=OTTER), *make_call(1, prompt="a fish"))
    response = await create(server, max_tool_calls=1)
    assert [item["status"] for item in response["output"]] == ["completed", "failed", "completed"]
    error = response["output"][1]["error"]
    assert (error["code"], error["type"]) == ("max_tool_calls_reached", "invalid_request_error")


async def test_images_of_one_turn_are_made_one_after_the_other(server: ApiServer) -> None:
    server.engine.says(*make_call(0, prompt=OTTER), *make_call(1, prompt="a fish"))
    names = [name for name in list_names(await stream(server)) if "image" in name]
    assert [name.rpartition(".")[2] for name in names] == [
        "in_progress", "in_progress", "generating", "completed", "generating", "completed",
    ]  # fmt: skip


async def test_tool_choice_forces_an_image(server: ApiServer) -> None:
    response = await create(server, {"prompt": OTTER}, tool_choice={"type": "image_generation"})
    assert response["output"][0]["result"] == draw(OTTER)
    choices = [request.prompt.tool_choice for request in server.engine.seen]  # type: ignore[union-attr]
    assert choices[0] != "auto"
    assert choices[1] == "auto"


async def test_cancelling_a_response_closes_the_request_to_the_service(server: ApiServer) -> None:
    queue_turns(server, {"prompt": "[fake silence]"})
    created = await server.create(tools=[TOOL], background=True)
    async for event in Client(server.app, "GET", f"responses/{created['id']}?stream=true").events():
        if event["type"].endswith("generating"):
            break
    cancelled = await server.post(f"responses/{created['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert (await create(server, {"prompt": OTTER}))["output"][0]["status"] == "completed"


@pytest.mark.shows("E.20")
@pytest.mark.parametrize("reference", ["previous_response_id", "conversation", "whole item", "id"])
async def test_an_image_of_the_history_is_edited(server: ApiServer, reference: str) -> None:
    fields: Json = {}
    if reference == "conversation":
        fields = {"conversation": (await server.post_ok("conversations", {}))["id"]}
    first = await create(server, {"prompt": OTTER}, **fields)
    made = first["output"][0]
    if reference == "previous_response_id":
        fields = {"previous_response_id": first["id"]}
    elif reference != "conversation":
        item = made if reference == "whole item" else {"type": "item_reference", "id": made["id"]}
        fields = {"input": [item, {"role": "user", "content": "With a hat."}]}
    second = await create(server, {"prompt": "with a hat", "action": "edit"}, **fields)
    edited = second["output"][0]
    assert edited["action"] == "edit"
    assert edited["result"] == draw("with a hat", b64decode(made["result"]))
    items = (await server.get(f"responses/{second['id']}/input_items")).json()["data"]
    if "input" in fields:
        assert [one["result"] for one in items if one["type"] == "image_generation_call"] == [made["result"]]


@pytest.mark.shows("E.20")
async def test_an_edit_takes_the_newest_images_of_messages_and_of_this_response(server: ApiServer) -> None:
    photos = [png(8, 8 + number) for number in range(17)]
    response = await create(
        server, {"prompt": "a", "action": "edit"}, {"prompt": "b", "action": "edit"}, input=show(*photos)
    )
    first, second = [item["result"] for item in response["output"][:2]]
    assert first == draw("a", *photos[1:])
    assert second == draw("b", *photos[2:], b64decode(first))


async def test_an_edit_takes_as_many_of_the_newest_images_as_fit(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = [png(8, 8 + number) for number in range(4)]
    monkeypatch.setattr(response_images, "_MAX_SOURCE_CHARACTERS", sum([len(to_url(photo)) for photo in photos[2:]]))
    response = await create(server, {"prompt": "a", "action": "edit"}, input=show(*photos))
    assert response["output"][0]["result"] == draw("a", *photos[2:])
    monkeypatch.setattr(response_images, "_MAX_SOURCE_CHARACTERS", 1)  # the newest is always sent
    response = await create(server, {"prompt": "a", "action": "edit"}, input=show(*photos))
    assert response["output"][0]["result"] == draw("a", photos[3])


async def test_the_prompt_that_a_service_reports_is_the_revised_one() -> None:
    stub = StubService()
    stub.body = json.dumps({"data": [{"b64_json": encode_image(PHOTO), "revised_prompt": "a sea otter"}]}).encode()
    async with serve_tcp(stub.handle) as port, run_api(image_service=(f"http://127.0.0.1:{port}",)) as api:
        assert (await create(api, {"prompt": OTTER}))["output"][0]["revised_prompt"] == "a sea otter"


async def test_an_image_that_no_prompt_takes_is_a_failure_and_the_conversation_goes_on() -> None:
    stub = StubService()
    stub.body = json.dumps({"data": [{"b64_json": encode_image(png(1, 1))}]}).encode()
    async with serve_tcp(stub.handle) as port, run_api(image_service=(f"http://127.0.0.1:{port}",)) as api:
        made = await create(api, {"prompt": OTTER})
        assert [item["status"] for item in made["output"]] == ["failed", "completed"]
        assert "1×1 pixels" in made["output"][0]["error"]["message"]
        api.engine.says(Text("Hello."))
        assert (await api.create(previous_response_id=made["id"]))["status"] == "completed"


async def test_a_mask_and_stored_files_are_part_of_an_edit(server: ApiServer) -> None:
    file_id = await ContainerApi(server).store_file(PHOTO, "photo.png")
    mask_id = await ContainerApi(server).store_file(MASK, "mask.png")
    content = [{"type": "input_image", "file_id": file_id}, {"type": "input_text", "text": "Change it."}]
    for mask in ({"file_id": mask_id}, {"image_url": to_url(MASK)}):
        tool = {**TOOL, "input_image_mask": mask}
        response = await create(server, {"prompt": "a"}, tools=[tool], input=[{"role": "user", "content": content}])
        assert response["output"][0]["result"] == draw("a", PHOTO, mask=MASK)


async def test_the_declared_action_overrules_the_model(server: ApiServer) -> None:
    for action, sources in (("generate", ()), ("edit", (PHOTO,))):
        other = "edit" if action == "generate" else "generate"
        response = await create(
            server, {"prompt": "a", "action": other}, tools=[{**TOOL, "action": action}], input=show(PHOTO)
        )
        assert (response["output"][0]["action"], response["output"][0]["result"]) == (action, draw("a", *sources))


@pytest.mark.shows("E.20")
async def test_a_model_that_sees_is_shown_the_image_and_others_read_that_it_was_made(server: ApiServer) -> None:
    response = await create(server, {"prompt": OTTER})
    image, note = to_url(b64decode(draw(OTTER))), "An image was made of 256x256 pixels and shown to the user."
    assert image in last_prompt(server)
    await create(server, previous_response_id=response["id"])
    assert image in last_prompt(server)
    assert note in last_prompt(server)
    async with run_api(engine=BlindEngine(), **SERVICE) as blind:
        response = await create(blind, {"prompt": OTTER})
        await create(blind, previous_response_id=response["id"])
        assert note in last_prompt(blind)
        assert image not in last_prompt(blind)


async def test_a_result_of_the_client_that_is_no_image_is_refused_by_name(server: ApiServer) -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "bm90IGFuIGltYWdl"}
    answer = await server.post("responses", {"model": "fake", "input": [item, {"role": "user", "content": "?"}]})
    assert (answer.status, answer.error["param"]) == (400, "input[0].result")


@pytest.mark.shows("E2.2")
@pytest.mark.parametrize(
    ("recipient", "action"),
    [
        ("image_generation.generate", "generate"),
        ("image_generation.text2im", "generate"),
        ("image_gen.text2im", "generate"),
        ("images.create", "generate"),
        ("image_generation.edit", "edit"),
        ("images.edits", "edit"),
    ],
)
async def test_the_namespaces_of_gpt_oss_lead_to_the_service(recipient: str, action: str) -> None:
    engine = FakeEngine(FakeSettings(level="harmony"))
    async with asyncio.timeout(60), run_api(engine=engine, **SERVICE) as gpt_oss:
        for output in (
            f'<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{"prompt": "{OTTER}"}}<|call|>',
            "<|channel|>final<|message|>Here it is.<|return|>",
        ):
            engine.says(*[Chunk(tokens=(token,)) for token in encode_tokens(output)])
        made = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": to_url(PHOTO)[22:]}
        response = await gpt_oss.create(tools=[TOOL], input=[made, {"role": "user", "content": "?"}])
        assert response["output"][0]["result"] == draw(OTTER, *([PHOTO] if action == "edit" else []))
        assert response["output"][0]["action"] == action
        assert response["output"][1]["content"][0]["text"] == "Here it is."


async def test_an_image_is_named_by_its_type_and_id_alone(server: ApiServer) -> None:
    made = (await create(server, {"prompt": OTTER}))["output"][0]
    items = [{"type": "image_generation_call", "id": made["id"]}, {"role": "user", "content": "With a hat."}]
    second = await create(server, {"prompt": "with a hat", "action": "edit"}, input=items)
    assert second["output"][0]["result"] == draw("with a hat", b64decode(made["result"]))
    conversation = await server.post_ok("conversations", {"items": items[:1]})
    assert (await server.get(f"conversations/{conversation['id']}/items")).json()["data"][0]["id"] == made["id"]
    unknown = [{"type": "image_generation_call", "id": "ig_1"}, {"role": "user", "content": "?"}]
    answer = await server.post("responses", {"model": "fake", "input": unknown})
    assert (answer.status, answer.error["param"]) == (400, "input[0].id")
