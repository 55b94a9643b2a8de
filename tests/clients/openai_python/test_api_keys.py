"""The `openai` package with the keys of two tenants: each tenant sees and lists only its own objects."""

from collections.abc import Callable, Iterator

import pytest
from openai import APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI, PermissionDeniedError
from openai._types import RequestOptions
from openai.pagination import SyncConversationCursorPage
from openai.types.conversations import Conversation
from openai.types.responses import Response
from websockets.exceptions import InvalidStatus

from tests.support.server_process import ServerProcess, run_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("alpha key-of-alpha\nbeta key-of-beta\n")
    with run_server("--engine", "fake", "--api-key-file", str(file)) as server:
        yield server


def make_client(server: ServerProcess, key: str) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def alpha(server: ServerProcess) -> Iterator[OpenAI]:
    with make_client(server, "key-of-alpha") as one:
        yield one


@pytest.fixture
def beta(server: ServerProcess) -> Iterator[OpenAI]:
    with make_client(server, "key-of-beta") as one:
        yield one


@pytest.mark.shows("H.2")
def test_objects_of_one_tenant_are_not_found_by_another(alpha: OpenAI, beta: OpenAI) -> None:
    made = alpha.responses.create(model="fake", input="hi", background=True)
    conversation = alpha.conversations.create()
    attempts: list[Callable[[], object]] = [
        lambda: beta.responses.retrieve(made.id),
        lambda: beta.responses.delete(made.id),
        lambda: beta.responses.cancel(made.id),
        lambda: beta.responses.input_items.list(made.id),
        lambda: beta.conversations.retrieve(conversation.id),
        lambda: beta.conversations.items.list(conversation.id),
        lambda: beta.conversations.delete(conversation.id),
        lambda: beta.responses.create(model="fake", input="hi", conversation=conversation.id),
    ]
    for attempt in attempts:
        with pytest.raises(NotFoundError):
            attempt()
    with pytest.raises(BadRequestError) as refused:
        beta.responses.create(model="fake", input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    assert alpha.responses.retrieve(made.id).id == made.id
    assert alpha.conversations.retrieve(conversation.id).id == conversation.id


@pytest.mark.shows("H.2")
def test_a_tenant_lists_its_own_objects_page_by_page(alpha: OpenAI, beta: OpenAI) -> None:
    made = [beta.responses.create(model="fake", input="hi").id for _ in range(5)]
    conversation_ids = [beta.conversations.create().id for _ in range(3)]
    options: RequestOptions = {"params": {"limit": 2, "order": "asc"}}
    responses = beta.get_api_list(
        "/responses", page=SyncConversationCursorPage[Response], model=Response, options=options
    )
    assert [one.id for one in responses] == sorted(made)
    conversations = beta.get_api_list(
        "/conversations", page=SyncConversationCursorPage[Conversation], model=Conversation, options=options
    )
    assert [one.id for one in conversations] == sorted(conversation_ids)
    with pytest.raises(BadRequestError):
        alpha.get("/responses", cast_to=object, options={"params": {"after": made[0]}})


def test_a_wrong_key_is_rejected_everywhere(server: ServerProcess) -> None:
    with make_client(server, "wrong") as unauthorised:
        for attempt in (unauthorised.models.list, lambda: unauthorised.responses.create(model="fake", input="hi")):
            with pytest.raises(AuthenticationError) as refused:
                attempt()
            assert refused.value.code == "invalid_api_key"
        with pytest.raises((InvalidStatus, APIStatusError)), unauthorised.responses.connect():
            pass


def test_a_tenant_key_has_no_operator_access(beta: OpenAI, server: ServerProcess) -> None:
    with pytest.raises(PermissionDeniedError):
        beta.get(f"{server.url}/metrics", cast_to=str)
