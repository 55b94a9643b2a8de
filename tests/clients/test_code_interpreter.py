"""The `openai` package with a code interpreter and a shell in a container: code and commands run, files are cited and
downloaded, and variables stay.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import (
    FunctionShellToolParam,
    ResponseCodeInterpreterToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionShellToolCallOutput,
    ResponseOutputMessage,
)
from openai.types.responses.response_output_text import AnnotationContainerFileCitation
from openai.types.responses.tool_param import CodeInterpreter

from tests.support.sandboxes import keep_sandbox
from tests.support.server_process import ServerProcess, run_server

TOOL: CodeInterpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
SCRIPT = '''
[[reply]]
when = { contains = "write", tool = "code_interpreter", output = "sandbox" }
steps = [{ say = ["It is [here](sandbox:/mnt/data/", "numbers.csv)."] }]

[[reply]]
when = { output = "42" }
steps = [{ say = ["It is 42."] }]

[[reply]]
when = { contains = "write" }
steps = [{ call = { name = "code_interpreter", chunks = 9, arguments = { code = """
x = 41
open('/mnt/data/numbers.csv', 'w').write('1,2')""" } } }]

[[reply]]
when = { contains = "list", output = "exit code 3" }
steps = [{ say = ["Done."] }]

[[reply]]
when = { contains = "list" }
steps = [{ call = { name = "shell", arguments = { commands = ["cat numbers.csv", "echo no >&2; exit 3"] } } }]

[[reply]]
when = { contains = "read" }
steps = [{ call = { name = "code_interpreter", arguments = { code = "print(x + 1)" } } }]
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script: Path = tmp_path_factory.mktemp("script") / "script.toml"
    script.write_text(SCRIPT)
    with keep_sandbox("auto") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        options = ("--sandbox-folder", str(found.folder), "--sandbox-python", found.python)
        with run_server("--engine", "fake", "--fake-script", str(script), *options) as server:
            yield server


@pytest.mark.shows("E.18", "E.19")
@pytest.mark.uses("openai-python", "hosted tools")
def test_code_runs_its_file_is_downloaded_and_a_continuation_has_its_variables(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=60) as client:
        with client.responses.stream(model="fake", input="write", tools=[TOOL]) as stream:
            events = [*stream]
            first = stream.get_final_response()
        code = "".join(event.delta for event in events if event.type == "response.code_interpreter_call_code.delta")
        call, message = first.output
        assert isinstance(call, ResponseCodeInterpreterToolCall)
        assert isinstance(message, ResponseOutputMessage)
        assert (call.status, call.code, call.outputs) == ("completed", code, None)
        (citation,) = message.content[0].annotations  # type: ignore[union-attr]  # a text
        assert isinstance(citation, AnnotationContainerFileCitation)
        link = first.output_text[citation.start_index : citation.end_index]
        assert (link, citation.container_id) == ("sandbox:/mnt/data/numbers.csv", call.container_id)
        content = client.containers.files.content.retrieve(citation.file_id, container_id=citation.container_id)
        assert content.read() == b"1,2"
        second = client.responses.create(
            model="fake",
            input="read",
            previous_response_id=first.id,
            tools=[TOOL],
            include=["code_interpreter_call.outputs"],
        )
        again = second.output[0]
        assert isinstance(again, ResponseCodeInterpreterToolCall)
        assert again.container_id == call.container_id
        assert [output.to_dict() for output in again.outputs or []] == [{"type": "logs", "logs": "42\n"}]
        assert second.output_text == "It is 42."
        client.containers.delete(call.container_id)
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(
                model="fake", input="x", tools=[{"type": "code_interpreter", "container": call.container_id}]
            )
        assert (refused.value.param, refused.value.code) == ("tools[0].container", "container_not_found")


@pytest.mark.shows("E.29")
def test_commands_run_in_the_container_of_the_code_and_their_output_is_streamed(server: ServerProcess) -> None:
    shell: FunctionShellToolParam = {"type": "shell", "environment": {"type": "container_auto"}}
    with OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=60) as client:
        first = client.responses.create(model="fake", input="write", tools=[TOOL])
        with client.responses.stream(
            model="fake", input="list", previous_response_id=first.id, tools=[shell]
        ) as stream:
            deltas = [event for event in stream if event.type == "response.shell_call_output_content.delta"]
            second = stream.get_final_response()
        call, output = second.output[:2]
        assert isinstance(call, ResponseFunctionShellToolCall)
        assert isinstance(output, ResponseFunctionShellToolCallOutput)
        assert call.environment is not None
        assert call.environment.type == "container_reference"
        assert call.environment.container_id == first.output[0].container_id  # type: ignore[union-attr]  # of code
        assert [(delta.command_index, delta.delta.stdout, delta.delta.stderr) for delta in deltas] == [
            (0, "1,2", None), (1, None, "no\n")
        ]  # fmt: skip
        assert [one.outcome.to_dict() for one in output.output] == [
            {"type": "exit", "exit_code": 0}, {"type": "exit", "exit_code": 3}
        ]  # fmt: skip
        assert second.output_text == "Done."
