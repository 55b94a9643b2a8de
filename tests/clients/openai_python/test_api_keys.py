"""The openai package for Python with keys of two tenants: each sees its own, and lists it page by page."""

from collections.abc import Callable, Iterator

import pytest
from openai import APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI, PermissionDeniedError
from openai._types import RequestOptions
from openai.pagination import SyncConversationCursorPage
from openai.types.conversations import Conversation
from openai.types.responses import Response
from websockets.exceptions import InvalidStatus

from tests.support.server_process import Live, serving


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("alpha key-of-alpha\nbeta key-of-beta\n")
    with serving("--engine", "fake", "--api-key-file", str(file)) as live:
        yield live


def client(live: Live, key: str) -> OpenAI:
    return OpenAI(base_url=live.v1, api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def alpha(keyed: Live) -> Iterator[OpenAI]:
    with client(keyed, "key-of-alpha") as one:
        yield one


@pytest.fixture
def beta(keyed: Live) -> Iterator[OpenAI]:
    with client(keyed, "key-of-beta") as one:
        yield one


@pytest.mark.shows("H.2")
def test_what_one_tenant_has_is_not_found_by_another(alpha: OpenAI, beta: OpenAI) -> None:
    made = alpha.responses.create(model="fake", input="hi", background=True)
    talk = alpha.conversations.create()
    tries: list[Callable[[], object]] = [
        lambda: beta.responses.retrieve(made.id),
        lambda: beta.responses.delete(made.id),
        lambda: beta.responses.cancel(made.id),
        lambda: beta.responses.input_items.list(made.id),
        lambda: beta.conversations.retrieve(talk.id),
        lambda: beta.conversations.items.list(talk.id),
        lambda: beta.conversations.delete(talk.id),
        lambda: beta.responses.create(model="fake", input="hi", conversation=talk.id),
    ]
    for attempt in tries:
        with pytest.raises(NotFoundError):
            attempt()
    with pytest.raises(BadRequestError) as refused:
        beta.responses.create(model="fake", input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    assert alpha.responses.retrieve(made.id).id == made.id
    assert alpha.conversations.retrieve(talk.id).id == talk.id


@pytest.mark.shows("H.2")
def test_a_tenants_own_are_listed_page_by_page(alpha: OpenAI, beta: OpenAI) -> None:
    made = [beta.responses.create(model="fake", input="hi").id for _ in range(5)]
    talks = [beta.conversations.create().id for _ in range(3)]
    options: RequestOptions = {"params": {"limit": 2, "order": "asc"}}
    responses = beta.get_api_list(
        "/responses", page=SyncConversationCursorPage[Response], model=Response, options=options
    )
    assert [one.id for one in responses] == sorted(made)
    conversations = beta.get_api_list(
        "/conversations", page=SyncConversationCursorPage[Conversation], model=Conversation, options=options
    )
    assert [one.id for one in conversations] == sorted(talks)
    with pytest.raises(BadRequestError):
        alpha.get("/responses", cast_to=object, options={"params": {"after": made[0]}})


def test_a_wrong_key_is_refused_everywhere(keyed: Live) -> None:
    with client(keyed, "wrong") as nobody:
        for attempt in (nobody.models.list, lambda: nobody.responses.create(model="fake", input="hi")):
            with pytest.raises(AuthenticationError) as refused:
                attempt()
            assert refused.value.code == "invalid_api_key"
        with pytest.raises((InvalidStatus, APIStatusError)), nobody.responses.connect():
            pass


def test_a_tenants_key_is_not_an_operators(beta: OpenAI, keyed: Live) -> None:
    with pytest.raises(PermissionDeniedError):
        beta.get(f"{keyed.url}/metrics", cast_to=str)
