"""The `openai` package with operator features: stored prompts, service tiers, engine-specific fields and additional
headers.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.support.server_process import ServerProcess, run_server

PROMPT = 'instructions = "You serve {{name}}."\n[[messages]]\ncontent = "Greet {{name}}."'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("prompts")
    (folder / "pmpt_greeting").mkdir()
    (folder / "pmpt_greeting" / "3.toml").write_text(PROMPT)
    flags = ("--prompt-dir", str(folder), "--compat", "off", "--default-service-tier", "flex", "--azure-headers")
    with run_server("--engine", "fake", "--allowed-service-tiers", "default,flex", *flags) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.v1, api_key="any", organization="org-1", max_retries=0) as response:
        yield response


@pytest.mark.shows("A.32")
def test_a_stored_prompt_is_filled_and_echoed(client: OpenAI) -> None:
    response = client.responses.create(model="fake", prompt={"id": "pmpt_greeting", "variables": {"name": "Ann"}})
    assert response.output_text == "You said: Greet Ann."
    assert response.prompt is not None
    assert (response.prompt.version, response.instructions) == ("3", "You serve Ann.")
    with client.responses.stream(
        model="fake", input="Now!", prompt={"id": "pmpt_greeting", "version": "3", "variables": {"name": "Bo"}}
    ) as stream:
        assert stream.get_final_response().output_text == "You said: Now!"
    with pytest.raises(NotFoundError) as unknown:
        client.responses.create(model="fake", input="hi", prompt={"id": "pmpt_none"})
    assert (unknown.value.code, unknown.value.param) == ("prompt_not_found", "prompt.id")


@pytest.mark.shows("A.43", "H1.4")
def test_service_tiers_are_selected_echoed_and_rejected(client: OpenAI) -> None:
    assert client.responses.create(model="fake", input="hi").service_tier == "flex"
    assert client.responses.create(model="fake", input="hi", service_tier="default").service_tier == "default"
    chat = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
    assert chat.service_tier == "flex"
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="fake", input="hi", service_tier="priority")
    assert refused.value.param == "service_tier"


@pytest.mark.shows("A5.5", "A5.6")
def test_engine_specific_fields_are_accepted_as_extra_body(client: OpenAI) -> None:
    extra = {"previous_input_messages": [{"role": "user", "content": "before"}], "enable_response_messages": True}
    response = client.responses.create(model="fake", input="hi", extra_body=extra)
    fields = response.model_dump()
    assert [message["content"] for message in fields["input_messages"]] == ["before", "hi"]
    assert fields["output_messages"] == [{"role": "assistant", "content": "You said: hi"}]


@pytest.mark.shows("H2.2", "H2.5")
def test_organization_and_azure_headers_are_returned(client: OpenAI) -> None:
    answer = client.responses.with_raw_response.create(model="fake", input="hi")
    assert answer.headers["openai-organization"] == "org-1"
    assert answer.headers["x-ms-request-id"] == answer.headers["x-request-id"] == answer.request_id
    assert answer.headers["x-ms-region"] == "local"
