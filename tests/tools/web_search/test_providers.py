"""Search providers: SearXNG, and any service with a JSON API. The operator selects them, but their responses are
untrusted.
"""

import asyncio
import json
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from antiphon.config import Config
from antiphon.config.tool_settings import WebSearchSettings
from antiphon.errors import FetchFailed, StartupError
from antiphon.protocol.types.items import WebSearchResult
from antiphon.protocol.types.tools import Location, WebSearchTool
from antiphon.tools.base import ToolServices
from antiphon.tools.web_search.providers import SearchQuery, make_provider
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import Behaviour, build_redirect, build_response, make_egress_client, respond_with, run_host
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

SECRET = "s3cret-of-the-provider"
FAILED = "The search service of this server does not answer as it should."
BRAVE = {"web": {"results": [{"url": "https://a.example/", "title": "A", "description": "about a"}]}}


async def search(
    behave: Behaviour, url: str, query: SearchQuery | None = None, **settings: Any
) -> list[WebSearchResult]:
    """Search with a provider whose `url` contains the placeholder {port}."""
    async with asyncio.timeout(100), run_host(behave) as host:
        provider_settings = WebSearchSettings(
            url=url.replace("{port}", str(host.port)), **{"timeout": 30.0, **settings}
        )
        return await make_provider(provider_settings, make_egress_client()).search(
            query or SearchQuery(query="ötters & co", count=3)
        )


def make_services(**settings: Any) -> ToolServices:
    return ToolServices(config=Config.from_settings(**settings), egress=make_egress_client())


async def test_searxng_is_queried_with_its_path_and_parameters() -> None:
    heads: list[bytes] = []

    async def behave(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(build_response(json.dumps({"results": [{"url": "u", "title": "t", "content": None}]}).encode()))

    for url in ("searxng+http://127.0.0.1:{port}/sx/", "searxng+http://127.0.0.1:{port}/sx/search?x=y"):
        assert await search(behave, url, SearchQuery(query="ötters & co", count=3, language="de-DE")) == [
            WebSearchResult(url="u", title="t")
        ]
        target = urlsplit(heads[-1].split(b" ")[1].decode())
        assert target.path == "/sx/search"
        assert parse_qs(target.query) == {"q": ["ötters & co"], "format": ["json"], "language": ["de-DE"]}


@pytest.mark.parametrize(("types", "categories"), [("image", "images"), ("text,image", "general,images")])
async def test_searxng_searches_images_and_shows_their_urls(types: str, categories: str) -> None:
    heads: list[bytes] = []
    rows = [{"url": "u", "title": "t", "content": "An otter.", "img_src": "https://i.example/o.png"}, {"url": "v"}]

    async def behave(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(build_response(json.dumps({"results": rows}).encode()))

    query = SearchQuery(query="otters", count=3, types=types)
    assert await search(behave, "searxng+http://127.0.0.1:{port}", query) == [
        WebSearchResult(url="u", title="t", snippet="An otter. https://i.example/o.png"),
        WebSearchResult(url="v"),
    ]
    assert parse_qs(urlsplit(heads[0].split(b" ")[1].decode()).query)["categories"] == [categories]


LOCATION = Location(country="DE", city="Berlin", region="Berlin", timezone="Europe/Berlin")
ALL_TYPES = WebSearchTool(search_content_types=["text", "image"])


@pytest.mark.parametrize(
    ("url", "declared", "ignored"),
    [
        ("searxng://h", WebSearchTool(), []),
        ("searxng://h", WebSearchTool(user_location=LOCATION), ["city", "region", "timezone"]),
        ("searxng://h", WebSearchTool(user_location=Location(country="XX")), ["country"]),
        ("searxng://h", WebSearchTool(user_location=Location(country="nonsense")), ["country"]),
        ("json://h/?q={query}", WebSearchTool(user_location=Location(country="DE")), ["country"]),
        ("json://h/?q={query}&l={language}", WebSearchTool(user_location=LOCATION), ["city", "region", "timezone"]),
        ("json://h/?q={query}&c={city}&n={country}", WebSearchTool(user_location=LOCATION), ["region", "timezone"]),
        ("searxng://h", ALL_TYPES, []),
        ("json://h/?q={query}&t={types}", ALL_TYPES, []),
        ("json://h/?q={query}", ALL_TYPES, ["search_content_types"]),
        ("json://h/?q={query}", WebSearchTool(search_content_types=["text"]), []),
    ],
    ids=repr,
)
async def test_options_that_a_service_cannot_use_are_listed(
    url: str, declared: WebSearchTool, ignored: list[str]
) -> None:
    tool = WebSearch(make_services(web_search_url=url))
    assert [name.rpartition(".")[2] for name in tool.list_ignored(declared)] == ignored


async def test_a_json_service_is_queried_by_get_with_its_key_in_a_header() -> None:
    heads: list[bytes] = []

    async def behave(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(build_response(json.dumps(BRAVE).encode()))

    found = await search(
        behave,
        "json+http://127.0.0.1:{port}/res/v1?q={query}&count={count}&country={country}",
        SearchQuery(query="a&b {count}", count=3, country="DE"),
        key=SECRET,
        key_header="X-Subscription-Token",
        results="web.results",
        snippet="description",
    )
    assert found == [WebSearchResult(url="https://a.example/", title="A", snippet="about a")]
    assert b"GET /res/v1?q=a%26b%20%7Bcount%7D&count=3&country=DE HTTP/1.1" in heads[0]
    assert f"X-Subscription-Token: {SECRET}".encode() in heads[0]


async def test_a_json_service_is_queried_by_post_with_a_body() -> None:
    bodies: list[Any] = []
    payload = {"data": [{"x": 1}, {"hits": [{"link": {"href": "https://b.example/"}, "name": "B"}]}]}

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append((head, json.loads(await reader.readexactly(length))))
        writer.write(build_response(json.dumps(payload).encode()))
        await writer.drain()

    async with serve_tcp(serve) as port:
        settings = WebSearchSettings(
            url=f"json+http://127.0.0.1:{port}/search",
            key=SECRET,
            body='{"query": "about {query}", "max_results": "{count}", "deep": [{"in": "{country}"}], "n": 1}',
            results="data.1.hits",
            link="link.href",
            title="name",
        )
        query = SearchQuery(query='say "hi" {count}', count=3, country="DE")
        assert await make_provider(settings, make_egress_client()).search(query) == [
            WebSearchResult(url="https://b.example/", title="B")
        ]
    head, body = bodies[0]
    assert body == {"query": 'about say "hi" {count}', "max_results": 3, "deep": [{"in": "DE"}], "n": 1}
    assert head.startswith(b"POST /search HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}".encode() in head


MALFORMED_BODIES = [
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


@pytest.mark.parametrize("body", MALFORMED_BODIES, ids=range(len(MALFORMED_BODIES)))
@pytest.mark.parametrize("kind", ["searxng+http://127.0.0.1:{port}", "json+http://127.0.0.1:{port}/?q={query}"])
async def test_a_malformed_response_gives_no_results_or_an_error(body: bytes, kind: str) -> None:
    try:
        assert all(one == WebSearchResult(url="") for one in await search(respond_with(body), kind))
    except FetchFailed as error:
        assert error.message == FAILED  # noqa: PT017 - an empty result is valid, too


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
        respond_with(b"{}", status="403 Forbidden"),
        respond_with(b"{}", status="500 Oops"),
        respond_with(SECRET.encode(), status=f"429 {SECRET}"),
    ],
)
async def test_a_failing_service_raises_an_error_without_details(
    behave: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(FetchFailed) as failed:
        await search(behave, "searxng+http://127.0.0.1:{port}", key=SECRET, timeout=0.5)
    assert failed.value.message == FAILED
    assert "Web search failed: 127.0.0.1" in caplog.text
    assert SECRET not in caplog.text


async def test_a_key_is_not_sent_to_a_redirect_target() -> None:
    heads: list[bytes] = []

    async def thief(head: bytes, writer: Writer) -> None:
        heads.append(head)
        writer.write(build_response(b"{}"))

    async with run_host(thief) as other:
        for target in (
            f"http://127.0.0.1:{other.port}/",
            f"//127.0.0.1:{other.port}/",
            f"http://localhost:{other.port}/",
        ):

            async def redirect(head: bytes, writer: Writer, target: str = target) -> None:
                writer.write(build_redirect(target, 307))

            with pytest.raises(FetchFailed):
                await search(redirect, "searxng+http://127.0.0.1:{port}", key=SECRET)
    assert heads == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"url": "https://search.example"}, "expected json"),
        ({"url": "brave://search.example"}, "expected json"),
        ({"url": "searxng+ftp://search.example"}, "expected json"),
        ({"url": f"searxng+https://user:{SECRET}@search.example"}, "user name"),
        ({"url": f"json+https://search.example/?key={SECRET}"}, r"contains \{query\}"),
        ({"url": "json+https://search.example/", "body": "{query"}, "is not valid JSON"),
        ({"url": "searxng+https://search.example", "key_header": "X: y"}, "not a valid header name"),
    ],
)
def test_invalid_settings_stop_the_start_without_showing_a_secret(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as stopped:
        WebSearch(make_services(web_search=WebSearchSettings(**settings)))
    assert SECRET not in str(stopped.value)


def test_a_missing_service_is_reported_with_its_flag() -> None:
    search_tool = WebSearch(make_services())
    assert "--web-search-url" in search_tool.missing


def test_the_repr_of_settings_shows_no_secret() -> None:
    settings = WebSearchSettings(url=f"json+https://x.example/?key={SECRET}&q={{query}}", key=SECRET)
    assert SECRET not in repr(settings) + repr(Config.from_settings(web_search=settings))
