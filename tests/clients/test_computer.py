"""The openai package's `ComputerToolset` as the client of a computer, with a driver that records what it is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.computer import AsyncComputerToolset, ComputerToolset, ComputerUseError

from tests.support.media_files import encode_data_url, png
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.anyio

SHOT = encode_data_url(png(320, 200))
PREVIEW = {"type": "computer_use_preview", "display_width": 320, "display_height": 200, "environment": "ubuntu"}
ACTIONS: list[dict[str, Any]] = [
    {"type": "click", "button": "left", "x": 10, "y": 20, "keys": ["CTRL"]},
    {"type": "double_click", "x": 319, "y": 199},
    {"type": "drag", "path": [{"x": 0, "y": 0}, {"x": 5, "y": 5}]},
    {"type": "keypress", "keys": ["ENTER"]},
    {"type": "move", "x": 1, "y": 1},
    {"type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 50},
    {"type": "type", "text": "otters"},
    {"type": "wait"},
]
OUTSIDE = {"actions": [{"type": "click", "button": "left", "x": 320, "y": 0}]}


def render_reply(when: str, **arguments: Any) -> str:
    call = f"{{ name = \"computer\", arguments = '{json.dumps(arguments)}', chunks = 7 }}"
    return f"[[reply]]\nwhen = {{ {when} }}\nsteps = [{{ call = {call} }}]\n"


# The model looks, clicks outside of the screen, and acts when it is corrected; after that it answers.
SCRIPT = "\n".join(
    [
        '[[reply]]\nwhen = { output = "320x200", prompt = "otters" }\nsteps = [{ say = "Done." }]\n',
        render_reply('contains = "preview", output = "320x200"', action=ACTIONS[6]),
        render_reply('contains = "maximum of 319"', actions=ACTIONS),
        render_reply('output = "320x200"', **OUTSIDE),
        render_reply('contains = "preview"', action={"type": "screenshot"}),
        render_reply("", actions=[{"type": "screenshot"}]),
    ]
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("computer") / "script.toml"
    path.write_text(SCRIPT)
    with run_server("--engine", "fake", "--fake-script", str(path), "--enable-computer-call") as server:
        yield server


@pytest.fixture
def computer_client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


class RecordingDriver:
    """Records the actions; each screenshot is the same."""

    def __init__(self) -> None:
        self.actions: list[dict[str, Any]] = []

    def record(self, action: Any) -> None:
        self.actions.append(action.to_dict())

    def screenshot(self) -> Any:
        return {"type": "computer_screenshot", "image_url": SHOT}

    click = double_click = drag = keypress = move = scroll = type = wait = record


class AsyncRecordingDriver(RecordingDriver):
    async def record(self, action: Any) -> None:  # type: ignore[override]  # the asynchronous form
        super().record(action)

    async def screenshot(self) -> Any:
        return super().screenshot()

    click = double_click = drag = keypress = move = scroll = type = wait = record  # type: ignore[assignment]  # as above


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"input": "go"}, ACTIONS), ({"input": "preview", "tools": [PREVIEW]}, [ACTIONS[6]])],
    ids=["computer", "preview"],
)
@pytest.mark.shows("E1.1", "E1.2", "E1.3")
def test_the_toolset_runs_the_actions_until_the_model_answers(
    computer_client: OpenAI, fields: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    driver = RecordingDriver()
    params: Any = {"model": "any", **fields}
    response = ComputerToolset(driver).run(computer_client, params)
    assert response.output_text == "Done."
    assert driver.actions == expected


@pytest.mark.shows("E1.1", "E1.2")
async def test_the_asynchronous_toolset_runs_the_actions_without_a_store(server: ServerProcess) -> None:
    driver = AsyncRecordingDriver()
    async with AsyncOpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        response = await AsyncComputerToolset(driver).run(client, {"model": "any", "input": "go", "store": False})
    assert response.output_text == "Done."
    assert driver.actions == ACTIONS


@pytest.mark.shows("E1.1", "E1.2")
def test_a_loop_of_streams_continues_by_the_id_of_the_previous_response(computer_client: OpenAI) -> None:
    driver = RecordingDriver()
    toolset = ComputerToolset(driver)
    fields: dict[str, Any] = {"model": "any", "tools": [{"type": "computer"}]}
    with computer_client.responses.stream(**fields, input="go") as stream:
        response = stream.get_final_response()
    while response.output[-1].type == "computer_call":
        output: Any = toolset.execute(response.output[-1])
        with computer_client.responses.stream(**fields, previous_response_id=response.id, input=[output]) as stream:
            response = stream.get_final_response()
    assert response.output_text == "Done."
    assert driver.actions == ACTIONS


def allow_looking(action: Any) -> bool:
    return bool(action.type == "screenshot")


@pytest.mark.shows("E1.2")
def test_a_client_that_does_not_allow_an_action_stops_before_it(computer_client: OpenAI) -> None:
    driver = RecordingDriver()
    with pytest.raises(ComputerUseError, match="not approved"):
        ComputerToolset(driver).run(computer_client, {"model": "any", "input": "go"}, before_action=allow_looking)
    assert driver.actions == []
