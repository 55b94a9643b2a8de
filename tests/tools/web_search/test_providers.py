"""What searches: SearXNG, and any service that answers with JSON. It is the operator's choice, and not trusted."""

import asyncio
import json
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from antiphon.config import Config
from antiphon.config.web_search import WebSearchSettings
from antiphon.errors import FetchFailed, StartupError
from antiphon.tools.web_search.providers.base import Found, Question
from antiphon.tools.web_search.providers.registry import make_provider
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import Behaviour, Reader, Writer, answer, egress, hosting, moved, saying
from tests.support.local_servers import tcp

pytestmark = pytest.mark.anyio

SECRET = "s3cret-of-the-provider"
FAILED = "The search service of this server does not answer as it should."
BRAVE = {"web": {"results": [{"url": "https://a.example/", "title": "A", "description": "about a"}]}}


async def ask(behave: Behaviour, url: str, question: Question | None = None, **settings: Any) -> list[Found]:
    """`url`: with {port} in it."""
    async with asyncio.timeout(100), hosting(behave) as host:
        given = WebSearchSettings(url=url.replace("{port}", str(host.port)), **{"timeout": 30.0, **settings})
        return await make_provider(given, egress()).search(question or Question(query="ötters & co", count=3))


async def test_searxng_is_asked_as_it_wants_to_be_also_below_a_path() -> None:
    heads: list[bytes] = []

    async def behave(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(answer(json.dumps({"results": [{"url": "u", "title": "t", "content": None}]}).encode()))

    for url in ("searxng+http://127.0.0.1:{port}/sx/", "searxng+http://127.0.0.1:{port}/sx/search?x=y"):
        assert await ask(behave, url, Question(query="ötters & co", count=3, language="de-DE")) == [Found("u", "t", "")]
        asked = urlsplit(heads[-1].split(b" ")[1].decode())
        assert asked.path == "/sx/search"
        assert parse_qs(asked.query) == {"q": ["ötters & co"], "format": ["json"], "language": ["de-DE"]}


async def test_any_service_is_asked_by_get_with_its_key_in_a_header() -> None:
    heads: list[bytes] = []

    async def behave(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(answer(json.dumps(BRAVE).encode()))

    found = await ask(
        behave,
        "json+http://127.0.0.1:{port}/res/v1?q={query}&count={count}&country={country}",
        Question(query="a&b {count}", count=3, country="DE"),
        key=SECRET,
        key_header="X-Subscription-Token",
        results="web.results",
        snippet="description",
    )
    assert found == [Found("https://a.example/", "A", "about a")]
    assert b"GET /res/v1?q=a%26b%20%7Bcount%7D&count=3&country=DE HTTP/1.1" in heads[0]
    assert f"X-Subscription-Token: {SECRET}".encode() in heads[0]


async def test_any_service_is_asked_by_post_with_a_body() -> None:
    bodies: list[Any] = []
    told = {"data": [{"x": 1}, {"hits": [{"link": {"href": "https://b.example/"}, "name": "B"}]}]}

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append((head, json.loads(await reader.readexactly(length))))
        writer.write(answer(json.dumps(told).encode()))
        await writer.drain()

    async with tcp(serve) as port:
        given = WebSearchSettings(
            url=f"json+http://127.0.0.1:{port}/search",
            key=SECRET,
            body='{"query": "about {query}", "max_results": "{count}", "deep": [{"in": "{country}"}], "n": 1}',
            results="data.1.hits",
            link="link.href",
            title="name",
        )
        question = Question(query='say "hi" {count}', count=3, country="DE")
        assert await make_provider(given, egress()).search(question) == [Found("https://b.example/", "B", "")]
    head, body = bodies[0]
    assert body == {"query": 'about say "hi" {count}', "max_results": 3, "deep": [{"in": "DE"}], "n": 1}
    assert head.startswith(b"POST /search HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}".encode() in head


ODD = [
    b"",
    b"[]",
    b"null",
    b"not json",
    b'{"results": 7}',
    b'{"results": [[]]}',
    b"[" * 100_000,
    b"\xff",
    b'{"results": {}}',
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("kind", ["searxng+http://127.0.0.1:{port}", "json+http://127.0.0.1:{port}/?q={query}"])
async def test_an_answer_of_another_shape_finds_nothing_or_is_an_error(body: bytes, kind: str) -> None:
    try:
        assert all(one == Found("") for one in await ask(saying(body), kind))
    except FetchFailed as error:
        assert error.message == FAILED  # noqa: PT017 - nothing may be found, too


async def silent(head: bytes, writer: Writer) -> None:
    await asyncio.sleep(30)


async def endless(head: bytes, writer: Writer) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"results": [')
    while True:
        writer.write(b'{"url": "https://x.example/"},' * 1000)
        await writer.drain()


@pytest.mark.parametrize(
    "behave",
    [
        silent,
        endless,
        saying(b"{}", status="403 Forbidden"),
        saying(b"{}", status="500 Oops"),
        saying(SECRET.encode(), status=f"429 {SECRET}"),
    ],
)
async def test_a_service_that_fails_is_an_error_that_tells_clients_nothing_about_it(
    behave: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(FetchFailed) as failed:
        await ask(behave, "searxng+http://127.0.0.1:{port}", key=SECRET, timeout=0.5)
    assert failed.value.message == FAILED
    assert "The web could not be searched: 127.0.0.1" in caplog.text
    assert SECRET not in caplog.text


async def test_a_key_goes_nowhere_else() -> None:
    heads: list[bytes] = []

    async def thief(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(answer(b"{}"))

    async with hosting(thief) as other:
        for target in (
            f"http://127.0.0.1:{other.port}/",
            f"//127.0.0.1:{other.port}/",
            f"http://localhost:{other.port}/",
        ):

            async def leading(head: bytes, writer: Writer, target: str = target) -> None:
                writer.write(moved(target, 307))

            with pytest.raises(FetchFailed):
                await ask(leading, "searxng+http://127.0.0.1:{port}", key=SECRET)
    assert heads == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "https://search.example"}, "expected json"),
        ({"url": "brave://search.example"}, "expected json"),
        ({"url": "searxng+ftp://search.example"}, "expected json"),
        ({"url": f"searxng+https://user:{SECRET}@search.example"}, "user name"),
        ({"url": f"json+https://search.example/?key={SECRET}"}, r"no \{query\} in it"),
        ({"url": "json+https://search.example/", "body": "{query"}, "is no JSON"),
        ({"url": "searxng+https://search.example", "key_header": "X: y"}, "no name of a header"),
    ],
)
def test_settings_that_do_not_fit_stop_the_start_without_a_secret(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(StartupError, match=why) as stopped:
        WebSearch(Config(web_search=WebSearchSettings(**settings)), egress())
    assert SECRET not in str(stopped.value)


def test_without_a_service_the_operator_is_told_how_to_get_one() -> None:
    made = WebSearch(Config(), egress())
    assert "--web-search-url" in made.missing


def test_no_secret_is_in_what_settings_show_of_themselves() -> None:
    settings = WebSearchSettings(url=f"json+https://x.example/?key={SECRET}&q={{query}}", key=SECRET)
    assert SECRET not in repr(settings) + repr(Config(web_search=settings))
