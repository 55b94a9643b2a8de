"""Recovery of background responses with tools: results of finished calls are used, and no call runs twice.

Covers `protocol/bodies/tool_outputs.py`.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.agent.tool_loop import INTERRUPTED
from antiphon.config import Config
from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage
from antiphon.core.prompt import ChatPrompt
from antiphon.image_services.fake_service import FakeImageService
from antiphon.protocol.bodies.tool_outputs import SubmittedToolOutput
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.items import CodeInterpreterCall, ImageGenerationCall, Message, ShellCallOutput
from antiphon.protocol.types.parts import FileCitation, OutputText
from antiphon.protocol.types.response import Response
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.images import Images
from antiphon.service.runs.follow import replay
from antiphon.tools.base import ToolServices
from antiphon.tools.code_interpreter.response_container import FOUND, LOST, OTHER_CONTAINER
from antiphon.tools.image_generation.tool import ImageGeneration
from tests.egress.hosts import make_egress_client
from tests.service.example_tool import FILES
from tests.service.runs.test_recovery import get_error_code, kill_server
from tests.service.service_nodes import (
    TENANT,
    Clock,
    EventCollector,
    ServiceNode,
    list_types,
    start_nodes,
    to_sse_bytes,
)
from tests.tools.code_interpreter.local_containers import make_shell, run_containers
from tests.tools.code_interpreter.local_containers import make_tool as make_interpreter
from tests.tools.file_search.library import Library, make_hit, make_tool

pytestmark = pytest.mark.anyio

CLIENT_TOOL = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
STREAM_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "not-streamed"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_calls(name: str = "find_in_files", arguments: str = '{"q": "x"}') -> list[Any]:
    return [CallStarted(0, name), CallDelta(0, arguments), CallDone(0)]


async def start_response(node: ServiceNode, stream: bool, **body: Any) -> str:
    """Start a background response, streamed to a client that disconnects if `stream`, and return its id."""
    body = {"tools": [FILES, CLIENT_TOOL], **body}
    if not stream:
        return await node.create_background(**body)
    collector = await node.create_stream(background=True, **body)
    await collector.disconnect()
    return collector.id


def list_item_types(response: Response) -> list[str]:
    return [str(item.__struct_config__.tag) for item in response.output]


def get_last_prompt_content(node: ServiceNode) -> Any:
    """Return the content of the last message in the last prompt of the engine."""
    prompt = node.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages[-1]["content"]


@STREAM_MODES
async def test_a_call_interrupted_by_a_crash_is_not_rerun_and_is_reported_to_the_model(
    clock: Clock, stream: bool
) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.example_tool.may_finish.clear()
        dead.engine.says(*make_calls())
        response_id = await start_response(dead, stream)
        await dead.example_tool.started.wait()
        await kill_server(dead, clock)
        other.engine.says(Text("I do not know."))
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        assert (response.status, list_item_types(response)) == ("completed", ["file_search_call", "message"])
        assert other.example_tool.calls == []
        assert get_last_prompt_content(other) == INTERRUPTED


@STREAM_MODES
async def test_a_finished_tool_result_is_in_the_prompt_after_recovery(clock: Clock, stream: bool) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(*make_calls())
        dead.engine.says(Text("Never heard."))
        gate = dead.engine.holds(after=0)
        response_id = await start_response(dead, stream)
        await gate.reached.wait()
        await kill_server(dead, clock)
        other.engine.says(Text("On page 7."))
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        assert (response.status, list_item_types(response)) == ("completed", ["file_search_call", "message"])
        assert (len(dead.example_tool.calls), other.example_tool.calls) == (1, [])
        assert get_last_prompt_content(other) == "It is on page 7."


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("is_lost", [False, True], ids=["found", "lost"])
async def test_code_that_was_running_is_not_rerun_and_the_model_is_told_whether_the_container_is_lost(
    clock: Clock, is_lost: bool
) -> None:
    async with run_containers() as containers, start_nodes(2, clock, built_in=(make_interpreter(containers),)) as nodes:
        dead, other = nodes
        containers.running.clear()
        dead.engine.says(*make_calls("code_interpreter", '{"code": "x = 1"}'))
        response_id = await start_response(dead, stream=False, tools=[{"type": "code_interpreter"}])
        await containers.called.wait()
        used = containers.latest
        await kill_server(dead, clock)
        containers.running.set()
        if is_lost:
            containers.expired.add(used)
        other.engine.says(*make_calls("code_interpreter", '{"code": "2"}'))
        other.engine.says(Text("I do not know."))
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        calls = [item for item in response.output if isinstance(item, CodeInterpreterCall)]
        assert [(call.code, call.status) for call in calls] == [("x = 1", "failed"), ("2", "completed")]
        assert [call.container_id for call in calls] == [used, containers.latest]
        assert (used != containers.latest) is is_lost
        prompts = repr([request.prompt for request in other.engine.seen])
        assert f"{INTERRUPTED} {LOST if is_lost else FOUND}" in prompts
        assert (OTHER_CONTAINER in prompts) is is_lost


@pytest.mark.shows("E.18")
@pytest.mark.parametrize("kind", ["code_interpreter", "shell"])
async def test_the_model_is_told_that_a_declared_container_is_lost_and_its_calls_fail(clock: Clock, kind: str) -> None:
    async with run_containers() as containers:
        declared = await containers.add(TENANT)
        tool = make_interpreter(containers) if kind == "code_interpreter" else make_shell(containers)
        arguments = '{"code": "1"}' if kind == "code_interpreter" else '{"commands": ["true"]}'
        place = {"container": declared, "environment": {"type": "container_reference", "container_id": declared}}
        field = "container" if kind == "code_interpreter" else "environment"
        async with start_nodes(2, clock, built_in=(tool,)) as (dead, other):
            containers.running.clear()
            dead.engine.says(*make_calls(kind, arguments))
            response_id = await start_response(dead, stream=False, tools=[{"type": kind, field: place[field]}])
            await containers.called.wait()
            await kill_server(dead, clock)
            containers.running.set()
            containers.expired.add(declared)
            other.engine.says(*make_calls(kind, arguments))
            other.engine.says(Text("I cannot."))
            await other.background_runs.scan()
            response = await other.wait_ended(response_id)
            assert response.status == "completed"
            results = [item for item in response.output if isinstance(item, CodeInterpreterCall | ShellCallOutput)]
            assert [item.status for item in results] == ["failed" if field == "container" else "incomplete"] * 2
            prompts = repr([request.prompt for request in other.engine.seen])
            assert f"{INTERRUPTED} {LOST}" in prompts
            assert f"The container {declared!r} has expired" in prompts.replace("\\", "")


@pytest.mark.shows("E.29")
@pytest.mark.parametrize("is_lost", [False, True], ids=["found", "lost"])
async def test_a_command_that_was_running_is_not_rerun_and_the_model_is_told_whether_the_container_is_lost(
    clock: Clock, is_lost: bool
) -> None:
    async with run_containers() as containers, start_nodes(2, clock, built_in=(make_shell(containers),)) as nodes:
        dead, other = nodes
        dead.engine.says(*make_calls("shell", '{"commands": ["echo 1 > n"]}'))
        dead.engine.says(*make_calls("shell", '{"commands": ["echo 2 > n"]}'))
        tools = [{"type": "shell", "environment": {"type": "container_auto"}}]
        gate = dead.engine.holds(after=0)
        response_id = await start_response(dead, stream=False, tools=tools)
        await gate.reached.wait()
        containers.running.clear()
        containers.called.clear()
        gate.open()
        await containers.called.wait()
        used = containers.latest
        await kill_server(dead, clock)
        containers.running.set()
        if is_lost:
            containers.expired.add(used)
        other.engine.says(*make_calls("shell", '{"commands": ["cat n"]}'))
        other.engine.says(Text("See sandbox:/mnt/data/n"))
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        outputs = [item for item in response.output if isinstance(item, ShellCallOutput)]
        assert [item.status for item in outputs] == ["completed", "incomplete", "completed"]
        assert outputs[2].output[0].stdout == ("" if is_lost else "1\n")
        prompts = repr([request.prompt for request in other.engine.seen])
        assert f"{INTERRUPTED} {LOST if is_lost else FOUND}" in prompts
        assert (OTHER_CONTAINER in prompts) is is_lost
        assert ("ContainerFileCitation" in repr(response.output[-1])) is not is_lost


@STREAM_MODES
async def test_passages_that_another_server_has_found_are_cited_after_recovery(clock: Clock, stream: bool) -> None:
    library = Library(make_hit("otters.txt", "They hold hands."), make_hit("fish.txt", "They swim."))
    async with start_nodes(2, clock, built_in=(make_tool(library),)) as (dead, other):
        dead.engine.says(*make_calls("file_search", '{"queries": ["otters"]}'))
        dead.engine.says(Text("Never heard."))
        gate = dead.engine.holds(after=0)
        response_id = await start_response(dead, stream)
        await gate.reached.wait()
        await kill_server(dead, clock)
        other.engine.says(Text("They swim【2†fish.txt】."))
        await other.background_runs.scan()
        message = (await other.wait_ended(response_id)).output[-1]
        assert len(library.requests) == 1
        assert isinstance(message, Message)
        assert message.content == [
            OutputText(text="They swim.", annotations=[FileCitation(file_id="file-fish", filename="fish.txt", index=9)])
        ]


async def test_a_follower_receives_one_stream_across_recovery(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.example_tool.may_finish.clear()
        dead.engine.says(*make_calls())
        response_id = await start_response(dead, stream=True)
        await dead.example_tool.started.wait()
        follower = EventCollector(await replay(other.detached_runs, TENANT, response_id)).start()
        await follower.wait_for("response.file_search_call.in_progress")
        await kill_server(dead, clock)
        other.engine.says(Text("I do not know."))
        await other.background_runs.scan()
        events = await follower.read_all()
        assert isinstance(events[-1], Completed)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert list_types(events).count("response.in_progress") == 1
        assert to_sse_bytes(events) == to_sse_bytes(await other.replay_events(response_id))


async def test_a_crash_during_model_output_fails_the_response(clock: Clock) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(*make_calls())
        dead.engine.says(Text("On "), Text("page 7."))
        response_id = await start_response(dead, stream=True)
        gate = dead.engine.holds(after=1)
        await gate.reached.wait()
        collector = EventCollector(await replay(dead.detached_runs, TENANT, response_id)).start()
        await collector.wait_for("response.output_text.delta")
        await collector.disconnect()
        await kill_server(dead, clock)
        await other.background_runs.scan()
        assert get_error_code(await other.wait_ended(response_id)) == "server_restarted"
        assert other.example_tool.calls == []


@pytest.mark.shows("A.12")
@STREAM_MODES
async def test_a_response_waiting_for_tool_outputs_keeps_waiting_on_another_server(clock: Clock, stream: bool) -> None:
    async with start_nodes(2, clock) as (dead, other):
        dead.engine.says(*make_calls("mine", "{}"))
        response_id = await start_response(dead, stream, wait_for_tool_outputs=True)
        await dead.store.outputs_expected.wait()
        pending = await dead.store.outputs(TENANT, response_id)
        await kill_server(dead, clock)
        other.engine.says(Text("Sunny."))
        await other.background_runs.scan()
        (call_id,) = pending
        await other.tool_outputs.submit(
            TENANT, response_id, SubmittedToolOutput(call_id=call_id, output="22 degrees", param="call_id", ignored=[])
        )
        response = await other.wait_ended(response_id)
        assert (response.status, list_item_types(response)) == (
            "completed",
            ["function_call", "function_call_output", "message"],
        )
        assert get_last_prompt_content(other) == "22 degrees"


@STREAM_MODES
async def test_a_stopping_server_hands_over_responses_waiting_for_tool_outputs(clock: Clock, stream: bool) -> None:
    async with start_nodes(2, clock) as (stopping, other):
        stopping.engine.says(*make_calls("mine", "{}"))
        response_id = await start_response(stopping, stream, wait_for_tool_outputs=True)
        await stopping.store.outputs_expected.wait()
        (call_id,) = await stopping.store.outputs(TENANT, response_id)
        stopping.detached_runs.interrupt()
        await stopping.detached_runs.tasks.wait_all()
        other.engine.says(Text("Sunny."))
        await other.background_runs.scan()
        await other.tool_outputs.submit(
            TENANT, response_id, SubmittedToolOutput(call_id=call_id, output="22 degrees", param="call_id", ignored=[])
        )
        assert (await other.wait_ended(response_id)).status == "completed"


@pytest.mark.shows("E.20")
@STREAM_MODES
async def test_an_image_that_was_being_made_is_not_made_again(clock: Clock, stream: bool) -> None:
    drawn: list[ImageRequest] = []
    second_started = asyncio.Event()

    class CountingService(FakeImageService):
        async def generate(self, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
            drawn.append(request)
            if len(drawn) == 2:
                second_started.set()
            async for event in super().generate(request):
                yield event

    images = Images([CountingService(ImageServiceSpec(url="fake"), make_egress_client())], queue=8)
    services = ToolServices(
        config=Config(), egress=make_egress_client(), images=images, load_images=Attachments().load_images
    )
    async with start_nodes(2, clock, built_in=(ImageGeneration(services),)) as (dead, other):
        dead.engine.says(*make_calls("image_generation", '{"prompt": "an otter"}'))
        dead.engine.says(*make_calls("image_generation", '{"prompt": "[fake silence] with a hat", "action": "edit"}'))
        tools = [{"type": "image_generation", "partial_images": 1}]
        response_id = await start_response(dead, stream, tools=tools)
        await second_started.wait()
        await kill_server(dead, clock)
        other.engine.says(*make_calls("image_generation", '{"prompt": "again", "action": "edit"}'))
        other.engine.says(Text("Here."))
        await other.background_runs.scan()
        response = await other.wait_ended(response_id)
        first, lost, third = [item for item in response.output if isinstance(item, ImageGenerationCall)]
        assert (lost.status, lost.result, lost.error["message"]) == ("failed", None, INTERRUPTED)  # type: ignore[index]
        assert [request.prompt for request in drawn[2:]] == ["again"]
        assert b64decode(str(first.result)) == drawn[2].sources[0].body
        assert third.status == "completed"
