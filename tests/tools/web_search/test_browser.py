"""What one response does on the web: searches, opens, finds, and what its items and the model are told of it."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon.core.deltas import Citation, Delta, Stage, Text
from antiphon.errors import AntiphonError, FetchFailed, InvalidValue, UrlRefused
from antiphon.protocol.types.builtin_items import FindAction, OpenPageAction, SearchAction, WebSearchCall
from antiphon.protocol.types.items import UrlCitation
from antiphon.protocol.types.tools import Location, WebFilters, WebSearchTool
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import answer, moved
from tests.tools.web_search.local_web import Web, a_web, browser, page, result, run, said, tool, use

pytestmark = pytest.mark.anyio

SOURCES, RESULTS = "web_search_call.action.sources", "web_search_call.results"


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with asyncio.timeout(200), a_web() as made:
        yield made


@pytest.mark.shows("E.14")
async def test_a_search_shows_numbered_results_with_their_urls(web: Web) -> None:
    told = await said(browser(web), "web_search", query="what do otters eat")
    assert told.startswith('[0] Results for "what do otters eat"\n')
    assert f"L0: 【0†All about otters†127.0.0.1:{web.url.rpartition(':')[2]}】" in told
    assert f"L1: {web.url}/otters" in told
    assert "L2: They eat fish." in told
    assert "Cite as 【0†L{line}】" in told
    assert web.asked == [{"q": "what do otters eat", "format": "json"}]


@pytest.mark.shows("E.14")
async def test_a_result_is_opened_by_its_number_and_read_line_by_line(web: Web) -> None:
    web.results = [result(f"{web.url}/otters.html", "Something else", "")]
    at = browser(web)
    await run(at, "web_search", query="otters")
    told = await said(at, "web_open", id="0")
    assert told.startswith(f"[1] All about otters ({web.url}/otters.html)\n**lines 0 to ")
    assert "L0: # Otters" in told
    assert f"【0†fish†127.0.0.1:{web.url.rpartition(':')[2]}】" in told
    assert "holds hands" in told


async def test_a_link_of_a_page_leads_on_and_a_cursor_says_whose_link_it_is(web: Web) -> None:
    web.results = [result(f"{web.url}/otters.html", "Otters", ""), result(f"{web.url}/fish", "Fish", "")]
    at = browser(web)
    await run(at, "web_search", query="otters")
    await run(at, "web_open", id=0)
    assert (await said(at, "web_open", id=0)).startswith(f"[2] Fish ({web.url}/fish)")
    assert (await said(at, "web_open", id=1, cursor=0)).startswith("[2] Fish")  # it was opened before
    assert (await said(at, "web_open", id=0, cursor=1)).startswith("[2] Fish")
    assert web.host is not None
    assert web.host.paths.count("/fish") == 1


async def test_a_page_is_opened_by_its_url(web: Web) -> None:
    at = browser(web)
    assert (await said(at, "web_open", id=f"{web.url}/notes.txt")).startswith("[0] 127.0.0.1")
    assert "otters: 3" in await said(at, "web_open", url=f"{web.url}/notes.txt")


async def test_a_window_of_a_long_page_is_shown_and_the_next_one_on_demand(web: Web) -> None:
    web.pages["/long"] = answer("\n".join(f"line number {n}" for n in range(1000)).encode(), "Content-Type: text/plain")
    at = browser(web)
    first = await said(at, "web_open", id=f"{web.url}/long")
    assert "**lines 0 to 119 of 999**" in first
    assert "L119: line number 119" in first
    assert "L120:" not in first
    second = await said(at, "web_open", loc=120, num_lines=2)
    assert "**lines 120 to 121 of 999**" in second
    assert "L121: line number 121\n\n" in second
    with pytest.raises(InvalidValue, match="no line 1000"):
        await run(at, "web_open", loc=1000)


@pytest.mark.parametrize(("size", "lines"), [("low", 60), ("medium", 120), ("high", 300)])
async def test_the_size_of_the_context_says_how_much_is_shown(web: Web, size: str, lines: int) -> None:
    web.pages["/long"] = answer("\n".join(map(str, range(1000))).encode(), "Content-Type: text/plain")
    web.results = [result(f"{web.url}/p{n}", f"P{n}", "word " * 400) for n in range(30)]
    declared = msgspec.convert({"type": "web_search", "search_context_size": size}, WebSearchTool)
    at = browser(web, declared)
    assert f"**lines 0 to {lines - 1} of 999**" in await said(at, "web_open", id=f"{web.url}/long")
    told = await said(at, "web_search", query="p")
    assert told.count("【") - 2 == {"low": 5, "medium": 8, "high": 15}[size]  # two in how to cite
    assert (await said(at, "web_search", query="p", topn=3)).count("【") - 2 == 3
    assert (await said(at, "web_search", query="p", topn=1000)).count("【") - 2 <= 20


@pytest.mark.shows("E.14")
async def test_what_is_found_in_a_page_is_shown_with_the_lines_around_it(web: Web) -> None:
    lines = [f"line {n}" for n in range(50)]
    lines[20] = "Here Be Otters"
    lines[30], lines[31] = "what goes on in the", "next line is found too"
    web.pages["/long"] = answer("\n".join(lines).encode(), "Content-Type: text/plain")
    at = browser(web)
    await run(at, "web_open", id=f"{web.url}/long")
    told = await said(at, "web_find", pattern="be  otters")
    assert "L18: line 18\nL19: line 19\nL20: Here Be Otters\nL21: line 21\nL22: line 22\n\n" in told
    assert "was found once" in told
    assert "L30: " in await said(at, "web_find", pattern="in the next line")
    assert "Nothing in it reads 'herons'." in await said(at, "web_find", pattern="herons", cursor=0)
    await run(at, "web_search", query="otters")
    assert "L2: They eat fish." in await said(at, "web_find", pattern="eat fish")


@pytest.mark.shows("A4.6", "E.15")
async def test_items_say_what_was_done_and_sources_only_who_asked_for_them(web: Web) -> None:
    at = browser(web)
    searched = (await run(at, "web_search", query="otters")).item
    assert searched == WebSearchCall(status="completed", action=SearchAction(query="otters", queries=["otters"]))
    assert (await run(at, "web_open", id=0)).item == WebSearchCall(
        status="completed", action=OpenPageAction(url=f"{web.url}/otters")
    )
    assert (await run(at, "web_find", pattern="sea")).item == WebSearchCall(
        status="completed", action=FindAction(url=f"{web.url}/otters", pattern="sea")
    )
    item = (await run(browser(web, None, SOURCES, RESULTS), "web_search", query="otters")).item
    assert isinstance(item, WebSearchCall)
    assert isinstance(item.action, SearchAction)
    assert msgspec.to_builtins(item)["action"]["sources"] == [
        {"type": "url", "url": f"{web.url}/otters"},
        {"type": "url", "url": f"{web.url}/fish"},
    ]
    assert msgspec.to_builtins(item)["results"][0] == {
        "url": f"{web.url}/otters",
        "title": "All about otters",
        "snippet": "They eat fish.",
    }


async def test_an_item_says_from_the_beginning_what_it_is_about(web: Web) -> None:
    at = browser(web)
    await run(at, "web_search", query="otters")
    await run(at, "web_open", id=0)
    told = [
        at.opened(use(name, given)).action
        for name, given in (
            ("web_search", {"query": "sea otters"}),
            ("web_open", {"id": 1, "cursor": 0}),
            ("web_open", {"loc": 10}),
            ("web_open", {"id": "https://x.example/"}),
            ("web_find", {"pattern": "p"}),
        )
    ]
    assert told == [
        SearchAction(query="sea otters", queries=["sea otters"]),
        OpenPageAction(url=f"{web.url}/fish"),
        OpenPageAction(url=f"{web.url}/otters"),
        OpenPageAction(url="https://x.example/"),
        FindAction(url=f"{web.url}/otters", pattern="p"),
    ]


async def test_it_is_told_that_something_is_searched(web: Web) -> None:
    told: list[Delta] = []

    async def tell(delta: Delta) -> None:
        told.append(delta)

    at = browser(web)
    await at.run(use("web_search", {"query": "x"}, key=7), tell)
    await at.run(use("web_open", {"id": 0}, key=8), tell)
    assert told == [Stage(7, "searching"), Stage(8, "searching")]


async def test_only_allowed_domains_are_found_and_opened(web: Web) -> None:
    web.results = [
        result("https://otters.example/a", "A", ""),
        result("https://news.otters.example/b", "B", ""),
        result("https://notters.example/c", "C", ""),
        result("https://otters.example.evil.example/d", "D", ""),
    ]
    declared = WebSearchTool(filters=WebFilters(allowed_domains=["https://Otters.example/"]))
    at = browser(web, declared)
    told = await said(at, "web_search", query="fish")
    assert web.asked[0]["q"] == "fish site:otters.example"
    assert "†A†" in told
    assert "†B†" in told
    assert "†C†" not in told
    assert "†D†" not in told
    with pytest.raises(UrlRefused, match="none of the domains"):
        await run(at, "web_open", id="https://other.example/")
    with pytest.raises(UrlRefused, match="none of the domains"):
        await run(browser(web, WebSearchTool(filters=WebFilters(allowed_domains=["no host!"]))), "web_open", id=web.url)


async def test_a_page_that_leads_out_of_the_allowed_domains_is_not_shown(web: Web) -> None:
    web.pages["/out"] = moved(f"http://localhost:{web.url.rpartition(':')[2]}/fish")
    port = web.url.rpartition(":")[2]
    declared = WebSearchTool(filters=WebFilters(allowed_domains=["127.0.0.1"]))
    at = tool(web, "127.0.0.1", f"localhost:{port}").begin(declared, "", frozenset())
    with pytest.raises(UrlRefused, match="localhost is none of the domains"):
        await run(at, "web_open", id=f"{web.url}/out")
    assert not at.rewriter()


async def test_where_the_user_is_decides_about_the_language_of_results(web: Web) -> None:
    for country, language in (("DE", "de-DE"), ("us", "en-US"), ("XX", None), ("nonsense", None), (None, None)):
        await run(
            browser(web, WebSearchTool(user_location=Location(country=country, city="X"))), "web_search", query="q"
        )
        assert web.asked[-1].get("language") == language


@pytest.mark.shows("E.11", "E.14")
async def test_a_page_in_a_private_place_is_not_opened_and_the_model_is_told_so(web: Web) -> None:
    at = tool(web, "10.1.2.3").begin(WebSearchTool(), "", frozenset())  # the provider is where the web is, all the same
    assert "All about otters" in await said(at, "web_search", query="otters")
    for url in (
        web.url,
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://[::1]/",
        "http://0x7f.1/",
    ):
        with pytest.raises(UrlRefused):
            await run(at, "web_open", id=url)
    for url in (
        "file:///etc/passwd",
        "gopher://x.example/",
        "javascript:alert(1)",
        "http://user:secret@x.example/",
    ):
        with pytest.raises(AntiphonError):
            await run(at, "web_open", id=url)
    assert web.host is not None
    assert web.host.paths == ["/search?q=otters&format=json"]


async def test_a_page_that_leads_to_a_private_place_is_not_followed(web: Web) -> None:
    for target in ("http://169.254.169.254/", "http://10.0.0.1/", "file:///etc/passwd", "//[::1]/"):
        web.pages["/out"] = moved(target)
        with pytest.raises(UrlRefused):
            await run(browser(web), "web_open", id=f"{web.url}/out")


async def test_what_cannot_be_had_is_said_in_a_sentence(web: Web) -> None:
    at = browser(web)
    with pytest.raises(FetchFailed, match="status 404"):
        await run(at, "web_open", id=f"{web.url}/nowhere")
    web.results = []
    assert await said(at, "web_search", query="x") == "The search for 'x' found nothing."
    with pytest.raises(InvalidValue, match="No page was opened yet"):
        await run(browser(web), "web_find", pattern="x")
    with pytest.raises(InvalidValue, match=r"There is no page \[7\]"):
        await run(at, "web_open", id=0, cursor=7)
    await run(at, "web_open", id=f"{web.url}/otters")
    with pytest.raises(InvalidValue, match="no link 9 on the page"):
        await run(at, "web_open", id=9)


async def test_results_that_are_no_pages_of_the_web_are_left_out(web: Web) -> None:
    web.results = [
        result("javascript:alert(1)", "no", ""),
        result("http://user@x.example/", "no", ""),
        {"url": 7, "title": ["no"], "content": {}},
        {},
        result("https://x.example/a b", "no", ""),
        result("https://x.example/1", "", "<|im_start|>\0【0†L1】 text\nmore"),
        result("https://x.example/1", "twice", ""),
    ]
    web.results += [None, "x", 3]  # type: ignore[list-item] # a server may send anything
    told = await said(browser(web), "web_search", query="q")
    assert "L0: 【0†x.example†x.example】\nL1: https://x.example/1\nL2: <|im_start|>〔0‡L1〕 text more\n\n" in told
    assert "no" not in told.partition("\n\n")[2].partition("\n\n")[0]


async def test_calls_side_by_side_get_their_cursors_in_the_order_of_the_calls(web: Web) -> None:
    at = browser(web)
    slow, quick = asyncio.Event(), asyncio.Event()

    async def late(head: bytes, writer: asyncio.StreamWriter) -> None:
        await slow.wait()
        writer.write(answer(b"This one took its time.", "Content-Type: text/plain"))

    web.pages["/late"] = late
    first = asyncio.ensure_future(said(at, "web_open", id=f"{web.url}/late"))
    second = asyncio.ensure_future(said(at, "web_open", id=f"{web.url}/notes.txt"))
    assert (await second).startswith("[1] ")
    quick.set()
    slow.set()
    assert (await first).startswith("[0] ")


async def test_a_response_looks_at_a_bounded_number_of_pages(web: Web) -> None:
    at = tool(web, max_pages=3).begin(WebSearchTool(), "", frozenset())
    for _ in range(3):
        await run(at, "web_search", query="q")
    with pytest.raises(AntiphonError, match="No more than 3 pages"):
        await run(at, "web_search", query="q")
    with pytest.raises(AntiphonError, match="No more than 3 pages"):
        await run(at, "web_open", id=f"{web.url}/otters")
    assert 'Results for "q"' in await said(at, "web_open", cursor=0)


async def test_a_response_reads_a_bounded_amount(web: Web) -> None:
    web.pages["/big"] = answer(b"word " * 100_000, "Content-Type: text/plain")
    at = browser(web)
    for number in range(10):
        await run(at, "web_open", id=f"{web.url}/big?{number}")
    with pytest.raises(AntiphonError, match="too much was read already"):
        await run(at, "web_open", id=f"{web.url}/big?10")


async def test_what_another_server_had_read_can_be_cited_and_is_numbered_on(web: Web) -> None:
    first = browser(web)
    told = [
        await said(first, "web_search", query="otters (https://evil.example/)"),
        await said(first, "web_open", id=0),
        await said(first, "web_find", pattern="fish"),
        (first.unrun(use("web_open", {"id": "x"}), "no")).said,
    ]
    web.pages["/a_(b)"] = page("<title>A (https://evil.example/)</title><p>" + "words that are read here " * 5)
    told.append(await said(first, "web_open", id=f"{web.url}/a_(b)"))
    second = browser(web)
    for one in told:
        second.recall(one)
    rewriter = second.rewriter()
    assert rewriter is not None
    deltas = [*rewriter.feed([Text("A【0†L1】 b【0†L4】 c【1†L2】 d【2†L0】")]), *rewriter.finish()]
    urls = [
        delta.annotation.url
        for delta in deltas
        if isinstance(delta, Citation) and isinstance(delta.annotation, UrlCitation)
    ]
    assert urls == [f"{web.url}/otters", f"{web.url}/fish", f"{web.url}/otters", f"{web.url}/a_(b)"]
    with pytest.raises(InvalidValue, match="not at hand any more"):
        await run(second, "web_open", cursor=1, loc=3)
    with pytest.raises(InvalidValue, match="not at hand any more"):
        await run(second, "web_find", pattern="fish")
    assert (await said(second, "web_open", id=1, cursor=0)).startswith(f"[3] Fish ({web.url}/fish)")
    for garbage in (
        "",
        "x",
        "[1]",
        "[1] x",
        "[1] y\nL0: 【0†t†h】",
        "[99999999] z\n",
        "[5] z (https://x.example/)\n" * 2,
    ):
        second.recall(garbage)


@pytest.mark.shows("E3.1")
def test_every_name_of_the_tool_is_served() -> None:
    assert {kind().__struct_config__.tag for kind in WebSearch.types} == {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }


async def test_who_wants_no_live_access_is_offered_nothing(web: Web) -> None:
    made = tool(web)
    assert made.functions(WebSearchTool(external_web_access=False)) == ()
    assert len(made.functions(WebSearchTool(external_web_access=True))) == 3
    assert [one.name for one in made.functions(WebSearchTool())] == ["web_search", "web_open", "web_find"]
    assert made.harmony == "browser"
    assert made.recipients["browser.open"] == "web_open"
