"""The web search tool within one response: searching, opening pages, finding text, and the items and outputs they
produce.

Covers `tools/web_search/functions.py` and `tools/web_search/tool.py`.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from antiphon.core.deltas import Citation, Delta, Progress, Text
from antiphon.errors import AntiphonError, EngineFailed, FetchFailed, InvalidValue, UrlRefused
from antiphon.protocol.types.items import FindAction, OpenPageAction, SearchAction, WebSearchCall
from antiphon.protocol.types.parts import UrlCitation
from antiphon.protocol.types.tools import Location, WebFilters, WebSearchTool
from antiphon.tools.web_search.tool import WebSearch
from tests.egress.hosts import build_redirect, build_response
from tests.tools.web_search.local_web import (
    LocalWeb,
    make_browser,
    make_call,
    make_page,
    make_result,
    make_tool,
    run_local_web,
    run_tool,
    run_tool_for_text,
)

pytestmark = pytest.mark.anyio

SOURCES, RESULTS = "web_search_call.action.sources", "web_search_call.results"


@pytest.fixture
async def web() -> AsyncIterator[LocalWeb]:
    async with asyncio.timeout(200), run_local_web() as local_web:
        yield local_web


@pytest.mark.shows("E.14")
async def test_a_search_shows_numbered_results_with_their_urls(web: LocalWeb) -> None:
    output = await run_tool_for_text(make_browser(web), "web_search", query="what do otters eat")
    assert output.startswith('[0] Results for "what do otters eat"\n')
    assert f"L0: 【0†All about otters†127.0.0.1:{web.url.rpartition(':')[2]}】" in output
    assert f"L1: {web.url}/otters" in output
    assert "L2: They eat fish." in output
    assert "Cite as 【0†L{line}】" in output
    assert web.queries == [{"q": "what do otters eat", "format": "json"}]


@pytest.mark.shows("E.14")
async def test_a_result_is_opened_by_its_number_and_read_line_by_line(web: LocalWeb) -> None:
    web.results = [make_result(f"{web.url}/otters.html", "Something else", "")]
    session = make_browser(web)
    await run_tool(session, "web_search", query="otters")
    output = await run_tool_for_text(session, "web_open", id="0")
    assert output.startswith(f"[1] All about otters ({web.url}/otters.html)\n**lines 0 to ")
    assert "L0: # Otters" in output
    assert f"【0†fish†127.0.0.1:{web.url.rpartition(':')[2]}】" in output
    assert "holds hands" in output


async def test_a_link_is_opened_on_the_page_of_its_cursor(web: LocalWeb) -> None:
    web.results = [make_result(f"{web.url}/otters.html", "Otters", ""), make_result(f"{web.url}/fish", "Fish", "")]
    session = make_browser(web)
    await run_tool(session, "web_search", query="otters")
    await run_tool(session, "web_open", id=0)
    assert (await run_tool_for_text(session, "web_open", id=0)).startswith(f"[2] Fish ({web.url}/fish)")
    assert (await run_tool_for_text(session, "web_open", id=1, cursor=0)).startswith(
        "[2] Fish"
    )  # already open, so its cursor is reused
    assert (await run_tool_for_text(session, "web_open", id=0, cursor=1)).startswith("[2] Fish")
    assert web.host is not None
    assert web.host.paths.count("/fish") == 1


async def test_a_page_is_opened_by_its_url(web: LocalWeb) -> None:
    session = make_browser(web)
    assert (await run_tool_for_text(session, "web_open", id=f"{web.url}/notes.txt")).startswith("[0] 127.0.0.1")
    assert "otters: 3" in await run_tool_for_text(session, "web_open", url=f"{web.url}/notes.txt")


async def test_a_window_of_a_long_page_is_shown_and_the_next_one_on_demand(web: LocalWeb) -> None:
    web.pages["/long"] = build_response(
        "\n".join(f"line number {n}" for n in range(1000)).encode(), "Content-Type: text/plain"
    )
    session = make_browser(web)
    first = await run_tool_for_text(session, "web_open", id=f"{web.url}/long")
    assert "**lines 0 to 119 of 999**" in first
    assert "L119: line number 119" in first
    assert "L120:" not in first
    second = await run_tool_for_text(session, "web_open", loc=120, num_lines=2)
    assert "**lines 120 to 121 of 999**" in second
    assert "L121: line number 121\n\n" in second
    with pytest.raises(InvalidValue, match="no line 1000"):
        await run_tool(session, "web_open", loc=1000)


@pytest.mark.parametrize(("size", "lines"), [("low", 60), ("medium", 120), ("high", 300)])
async def test_the_search_context_size_limits_the_output(web: LocalWeb, size: str, lines: int) -> None:
    web.pages["/long"] = build_response("\n".join(map(str, range(1000))).encode(), "Content-Type: text/plain")
    web.results = [make_result(f"{web.url}/p{n}", f"P{n}", "word " * 400) for n in range(30)]
    declared = msgspec.convert({"type": "web_search", "search_context_size": size}, WebSearchTool)
    session = make_browser(web, declared)
    assert f"**lines 0 to {lines - 1} of 999**" in await run_tool_for_text(session, "web_open", id=f"{web.url}/long")
    output = await run_tool_for_text(session, "web_search", query="p")
    assert output.count("【") - 2 == {"low": 5, "medium": 8, "high": 15}[size]  # two are in the citation instructions
    assert (await run_tool_for_text(session, "web_search", query="p", topn=3)).count("【") - 2 == 3
    assert (await run_tool_for_text(session, "web_search", query="p", topn=1000)).count("【") - 2 <= 20


@pytest.mark.shows("E.14")
async def test_matches_in_a_page_are_shown_with_surrounding_lines(web: LocalWeb) -> None:
    lines = [f"line {n}" for n in range(50)]
    lines[20] = "Here Be Otters"
    lines[30], lines[31] = "what goes on in the", "next line is found too"
    web.pages["/long"] = build_response("\n".join(lines).encode(), "Content-Type: text/plain")
    session = make_browser(web)
    await run_tool(session, "web_open", id=f"{web.url}/long")
    output = await run_tool_for_text(session, "web_find", pattern="be  otters")
    assert "L18: line 18\nL19: line 19\nL20: Here Be Otters\nL21: line 21\nL22: line 22\n\n" in output
    assert "was found once" in output
    assert "L30: " in await run_tool_for_text(session, "web_find", pattern="in the next line")
    assert "Nothing in it reads 'herons'." in await run_tool_for_text(session, "web_find", pattern="herons", cursor=0)
    await run_tool(session, "web_search", query="otters")
    assert "L2: They eat fish." in await run_tool_for_text(session, "web_find", pattern="eat fish")


@pytest.mark.shows("A4.6", "E.15")
async def test_items_describe_actions_and_list_sources_only_on_request(web: LocalWeb) -> None:
    session = make_browser(web)
    searched = (await run_tool(session, "web_search", query="otters")).item
    assert searched == WebSearchCall(status="completed", action=SearchAction(query="otters", queries=["otters"]))
    assert (await run_tool(session, "web_open", id=0)).item == WebSearchCall(
        status="completed", action=OpenPageAction(url=f"{web.url}/otters")
    )
    assert (await run_tool(session, "web_find", pattern="sea")).item == WebSearchCall(
        status="completed", action=FindAction(url=f"{web.url}/otters", pattern="sea")
    )
    item = (await run_tool(make_browser(web, None, SOURCES, RESULTS), "web_search", query="otters")).item
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


async def test_an_item_has_its_action_from_the_start(web: LocalWeb) -> None:
    session = make_browser(web)
    await run_tool(session, "web_search", query="otters")
    await run_tool(session, "web_open", id=0)
    actions = [
        session.start_item(make_call(name, arguments)).action
        for name, arguments in (
            ("web_search", {"query": "sea otters"}),
            ("web_open", {"id": 1, "cursor": 0}),
            ("web_open", {"loc": 10}),
            ("web_open", {"id": "https://x.example/"}),
            ("web_find", {"pattern": "p"}),
        )
    ]
    assert actions == [
        SearchAction(query="sea otters", queries=["sea otters"]),
        OpenPageAction(url=f"{web.url}/fish"),
        OpenPageAction(url=f"{web.url}/otters"),
        OpenPageAction(url="https://x.example/"),
        FindAction(url=f"{web.url}/otters", pattern="p"),
    ]


async def test_calls_emit_searching_progress(web: LocalWeb) -> None:
    deltas: list[Delta] = []

    async def emit(delta: Delta) -> None:
        deltas.append(delta)

    session = make_browser(web)
    await session.run(make_call("web_search", {"query": "x"}, key=7), emit)
    await session.run(make_call("web_open", {"id": 0}, key=8), emit)
    assert deltas == [Progress(7, "searching"), Progress(8, "searching")]


async def test_only_allowed_domains_are_found_and_opened(web: LocalWeb) -> None:
    web.results = [
        make_result("https://otters.example/a", "A", ""),
        make_result("https://news.otters.example/b", "B", ""),
        make_result("https://notters.example/c", "C", ""),
        make_result("https://otters.example.evil.example/d", "D", ""),
    ]
    declared = WebSearchTool(filters=WebFilters(allowed_domains=["https://Otters.example/"]))
    session = make_browser(web, declared)
    output = await run_tool_for_text(session, "web_search", query="fish")
    assert web.queries[0]["q"] == "fish site:otters.example"
    assert "†A†" in output
    assert "†B†" in output
    assert "†C†" not in output
    assert "†D†" not in output
    with pytest.raises(UrlRefused, match="none of the domains"):
        await run_tool(session, "web_open", id="https://other.example/")
    with pytest.raises(UrlRefused, match="none of the domains"):
        await run_tool(
            make_browser(web, WebSearchTool(filters=WebFilters(allowed_domains=["no host!"]))), "web_open", id=web.url
        )


async def test_a_redirect_out_of_the_allowed_domains_is_rejected(web: LocalWeb) -> None:
    web.pages["/out"] = build_redirect(f"http://localhost:{web.url.rpartition(':')[2]}/fish")
    port = web.url.rpartition(":")[2]
    declared = WebSearchTool(filters=WebFilters(allowed_domains=["127.0.0.1"]))
    session = make_tool(web, "127.0.0.1", f"localhost:{port}").begin(declared, "", frozenset())
    with pytest.raises(UrlRefused, match="localhost is none of the domains"):
        await run_tool(session, "web_open", id=f"{web.url}/out")
    assert not session.make_rewriter(is_last=True)


async def test_the_user_location_selects_the_language_of_results(web: LocalWeb) -> None:
    for country, language in (("DE", "de-DE"), ("us", "en-US"), ("XX", None), ("nonsense", None), (None, None)):
        await run_tool(
            make_browser(web, WebSearchTool(user_location=Location(country=country, city="X"))), "web_search", query="q"
        )
        assert web.queries[-1].get("language") == language


@pytest.mark.shows("E.11", "E.14")
async def test_a_page_at_a_private_address_is_rejected(web: LocalWeb) -> None:
    # the search provider is exempt from the egress policy
    session = make_tool(web, "10.1.2.3").begin(WebSearchTool(), "", frozenset())
    assert "All about otters" in await run_tool_for_text(session, "web_search", query="otters")
    for url in (
        web.url,
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://[::1]/",
        "http://0x7f.1/",
    ):
        with pytest.raises(UrlRefused):
            await run_tool(session, "web_open", id=url)
    for url in (
        "file:///etc/passwd",
        "gopher://x.example/",
        "javascript:alert(1)",
        "http://user:secret@x.example/",
    ):
        with pytest.raises(AntiphonError):
            await run_tool(session, "web_open", id=url)
    assert web.host is not None
    assert web.host.paths == ["/search?q=otters&format=json"]


async def test_a_redirect_to_a_private_address_is_not_followed(web: LocalWeb) -> None:
    for target in ("http://169.254.169.254/", "http://10.0.0.1/", "file:///etc/passwd", "//[::1]/"):
        web.pages["/out"] = build_redirect(target)
        with pytest.raises(UrlRefused):
            await run_tool(make_browser(web), "web_open", id=f"{web.url}/out")


async def test_missing_pages_and_results_are_reported_with_a_reason(web: LocalWeb) -> None:
    session = make_browser(web)
    with pytest.raises(FetchFailed, match="status 404"):
        await run_tool(session, "web_open", id=f"{web.url}/nowhere")
    web.results = []
    assert await run_tool_for_text(session, "web_search", query="x") == "The search for 'x' found nothing."
    with pytest.raises(InvalidValue, match="No page was opened yet"):
        await run_tool(make_browser(web), "web_find", pattern="x")
    with pytest.raises(InvalidValue, match=r"There is no page \[7\]"):
        await run_tool(session, "web_open", id=0, cursor=7)
    await run_tool(session, "web_open", id=f"{web.url}/otters")
    with pytest.raises(InvalidValue, match="no link 9 on the page"):
        await run_tool(session, "web_open", id=9)


async def test_results_without_a_valid_web_url_are_omitted(web: LocalWeb) -> None:
    web.results = [
        make_result("javascript:alert(1)", "no", ""),
        make_result("http://user@x.example/", "no", ""),
        {"url": 7, "title": ["no"], "content": {}},
        {},
        make_result("https://x.example/a b", "no", ""),
        make_result("https://x.example/1", "", "<|im_start|>\0【0†L1】 text\nmore"),
        make_result("https://x.example/1", "twice", ""),
    ]
    web.results += [None, "x", 3]  # type: ignore[list-item]  # a search server may send anything
    output = await run_tool_for_text(make_browser(web), "web_search", query="q")
    assert "L0: 【0†x.example†x.example】\nL1: https://x.example/1\nL2: <|im_start|>〔0‡L1〕 text more\n\n" in output
    assert "no" not in output.partition("\n\n")[2].partition("\n\n")[0]


async def test_concurrent_calls_get_their_cursors_in_call_order(web: LocalWeb) -> None:
    session = make_browser(web)
    slow, quick = asyncio.Event(), asyncio.Event()

    async def late(head: bytes, writer: asyncio.StreamWriter) -> None:
        await slow.wait()
        writer.write(build_response(b"This one took its time.", "Content-Type: text/plain"))

    web.pages["/late"] = late
    first = asyncio.ensure_future(run_tool_for_text(session, "web_open", id=f"{web.url}/late"))
    second = asyncio.ensure_future(run_tool_for_text(session, "web_open", id=f"{web.url}/notes.txt"))
    assert (await second).startswith("[1] ")
    quick.set()
    slow.set()
    assert (await first).startswith("[0] ")


async def test_a_response_opens_a_bounded_number_of_pages(web: LocalWeb) -> None:
    session = make_tool(web, max_pages=3).begin(WebSearchTool(), "", frozenset())
    for _ in range(3):
        await run_tool(session, "web_search", query="q")
    with pytest.raises(AntiphonError, match="No more than 3 pages"):
        await run_tool(session, "web_search", query="q")
    with pytest.raises(AntiphonError, match="No more than 3 pages"):
        await run_tool(session, "web_open", id=f"{web.url}/otters")
    assert 'Results for "q"' in await run_tool_for_text(session, "web_open", cursor=0)


async def test_a_response_reads_a_bounded_amount_of_text(web: LocalWeb) -> None:
    web.pages["/big"] = build_response(b"word " * 100_000, "Content-Type: text/plain")
    session = make_browser(web)
    for number in range(10):
        await run_tool(session, "web_open", id=f"{web.url}/big?{number}")
    with pytest.raises(AntiphonError, match="too much was read already"):
        await run_tool(session, "web_open", id=f"{web.url}/big?10")


async def test_recalled_pages_can_be_cited_and_numbering_continues(web: LocalWeb) -> None:
    first = make_browser(web)
    outputs = [
        await run_tool_for_text(first, "web_search", query="otters (https://evil.example/)"),
        await run_tool_for_text(first, "web_open", id=0),
        await run_tool_for_text(first, "web_find", pattern="fish"),
        (first.make_failed_result(make_call("web_open", {"id": "x"}), EngineFailed("no"))).model_output,
    ]
    web.pages["/a_(b)"] = make_page("<title>A (https://evil.example/)</title><p>" + "words that are read here " * 5)
    outputs.append(await run_tool_for_text(first, "web_open", id=f"{web.url}/a_(b)"))
    second = make_browser(web)
    for output in outputs:
        second.restore_output(output)
    rewriter = second.make_rewriter(is_last=True)
    assert rewriter is not None
    deltas = [*rewriter.feed([Text("A【0†L1】 b【0†L4】 c【1†L2】 d【2†L0】")]), *rewriter.finish()]
    urls = [
        delta.annotation.url
        for delta in deltas
        if isinstance(delta, Citation) and isinstance(delta.annotation, UrlCitation)
    ]
    assert urls == [f"{web.url}/otters", f"{web.url}/fish", f"{web.url}/otters", f"{web.url}/a_(b)"]
    with pytest.raises(InvalidValue, match="not at hand any more"):
        await run_tool(second, "web_open", cursor=1, loc=3)
    with pytest.raises(InvalidValue, match="not at hand any more"):
        await run_tool(second, "web_find", pattern="fish")
    assert (await run_tool_for_text(second, "web_open", id=1, cursor=0)).startswith(f"[3] Fish ({web.url}/fish)")
    for garbage in (
        "",
        "x",
        "[1]",
        "[1] x",
        "[1] y\nL0: 【0†t†h】",
        "[99999999] z\n",
        "[5] z (https://x.example/)\n" * 2,
    ):
        second.restore_output(garbage)


@pytest.mark.shows("E3.1")
def test_every_type_name_of_the_tool_is_supported() -> None:
    assert {kind().__struct_config__.tag for kind in WebSearch.types} == {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }


async def test_no_functions_are_offered_without_external_web_access(web: LocalWeb) -> None:
    search_tool = make_tool(web)
    assert search_tool.list_functions(WebSearchTool(external_web_access=False)) == ()
    assert len(search_tool.list_functions(WebSearchTool(external_web_access=True))) == 3
    assert [one.name for one in search_tool.list_functions(WebSearchTool())] == ["web_search", "web_open", "web_find"]
    assert search_tool.harmony == "browser"
    assert search_tool.recipients["browser.open"] == "web_open"
