"""The way out: vetted, pinned, bounded, at every hop."""

import asyncio
import gzip
import ssl

import pytest

from antiphon.egress import Caps, Egress, Policy
from antiphon.egress.resolver import SystemResolver
from antiphon.errors import FetchFailed, UrlRefused
from tests.egress.hosts import TLS, Behaviour, Names, Writer, answer, egress, hosting, moved, saying

pytestmark = pytest.mark.anyio

GOOD = "127.0.0.1"
OPEN = "127.0.0.0/8"


async def test_what_is_open_is_fetched() -> None:
    async with asyncio.timeout(30), hosting(saying(b"pixels", "Content-Type: image/png")) as host:
        names = Names(pictures_example=[[GOOD]])
        fetched = await egress(f"pictures.example:{host.port}", names=names).fetch(
            f"http://pictures.example:{host.port}/a%20b?c=d#e", "field"
        )
        assert (fetched.body, fetched.media_type) == (b"pixels", "image/png")
        assert host.paths == ["/a%20b?c=d"]
        head = host.heads[0].decode().lower()
        assert f"host: pictures.example:{host.port}\r\n" in head
        assert not any(word in head for word in ("cookie", "authorization", "referer", "proxy"))
        assert names.asked == ["pictures.example"]


async def test_nothing_is_connected_to_that_is_not_open() -> None:
    async with asyncio.timeout(30), hosting(saying(b"secret")) as host:
        names = Names(evil_example=[[GOOD]], mixed_example=[["1.1.1.1", GOOD]], zone_example=[["fe80::1%lo"]])
        way = egress(names=names)
        for url in (
            f"http://127.0.0.1:{host.port}/",
            f"http://localhost:{host.port}/",
            f"http://x.localhost:{host.port}/",
            f"http://[::1]:{host.port}/",
            f"http://[::ffff:127.0.0.1]:{host.port}/",
            f"http://evil.example:{host.port}/",
            f"http://mixed.example:{host.port}/",
            f"http://zone.example:{host.port}/",
        ):
            with pytest.raises(UrlRefused) as refused:
                await way.fetch(url, "input[0].content[0].image_url")
            assert refused.value.param == "input[0].content[0].image_url"
            if "zone" not in url:
                assert "--allow-egress " in refused.value.message
        assert host.connects == 0


@pytest.mark.shows("E.11")
async def test_the_refusal_prints_the_flag_that_opens_exactly_that() -> None:
    async with asyncio.timeout(30), hosting(saying(b"now")) as host:
        url = f"http://127.0.0.1:{host.port}/"
        with pytest.raises(UrlRefused) as refused:
            await egress().fetch(url, "")
        entry = refused.value.message.partition("--allow-egress ")[2].removesuffix(".")
        assert entry == f"127.0.0.1:{host.port}"
        assert (await egress(entry).fetch(url, "")).body == b"now"


async def test_a_name_that_changes_its_mind_is_asked_once_for_each_hop() -> None:
    """Rebinding: the first answer is vetted and connected to; whatever is said later is not heard."""
    async with asyncio.timeout(30), hosting(saying(b"harmless"), "127.0.0.3") as host:
        for _ in range(100):
            names = Names(rebound_example=[["127.0.0.3"], ["127.0.0.1"]])
            fetched = await egress("127.0.0.3", names=names).fetch(f"http://rebound.example:{host.port}/", "")
            assert fetched.body == b"harmless"
            assert names.asked == ["rebound.example"]


async def test_every_hop_is_vetted_anew() -> None:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(moved(f"http://rebound.example:{host.port}/again"))

    async with asyncio.timeout(30), hosting(saying(b"secret")) as canary, hosting(behave, "127.0.0.3") as host:
        names = Names(rebound_example=[["127.0.0.3"], ["127.0.0.1"]])
        with pytest.raises(UrlRefused, match="loopback"):
            await egress("127.0.0.3", names=names).fetch(f"http://rebound.example:{host.port}/", "")
        assert names.asked == ["rebound.example"] * 2
        assert (host.connects, canary.connects) == (1, 0)


def leading(to: str, status: int = 302) -> Behaviour:
    async def behave(head: bytes, writer: Writer) -> None:
        if b"GET /end " in head:
            writer.write(answer(b"there"))
        else:
            writer.write(moved(to, status))

    return behave


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_where_that_is_open(status: int) -> None:
    async with asyncio.timeout(30), hosting(leading("/end", status)) as host:
        fetched = await egress(OPEN).fetch(f"http://127.0.0.1:{host.port}/begin", "")
        assert fetched.body == b"there"
        assert fetched.url == f"http://127.0.0.1:{host.port}/end"
        assert host.paths == ["/begin", "/end"]


async def test_a_redirect_leads_nowhere_else() -> None:
    async with asyncio.timeout(30), hosting(saying(b"secret"), "127.0.0.1") as canary:
        at = f"127.0.0.1:{canary.port}"
        for to in (
            *(f"http://{at}/", f"//{at}/", f"http://localhost:{canary.port}/", f"http://a@{at}/"),
            *("http://169.254.169.254/x", "file:///etc/passwd", "http://0x7f.1/"),
        ):
            async with hosting(leading(to), "127.0.0.3") as host:
                with pytest.raises(UrlRefused):
                    await egress("127.0.0.3").fetch(f"http://127.0.0.3:{host.port}/", "")
        assert canary.connects == 0


async def test_redirects_are_counted() -> None:
    async with asyncio.timeout(30), hosting(leading("/again")) as host:
        with pytest.raises(FetchFailed, match="more than 5 times"):
            await egress(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")
        assert host.connects == 6


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server for localhost, and of a client that trusts it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return server, ssl.create_default_context(cafile=TLS / "certificate.pem")


async def test_tls_is_verified_against_the_name_in_the_url_and_not_the_address() -> None:
    server, trusting = contexts()
    async with asyncio.timeout(30), hosting(saying(b"sealed"), tls=server) as host:
        names = Names(other_example=[[GOOD]])
        way = egress(OPEN, "localhost", names=names, tls=trusting)
        with pytest.raises(FetchFailed, match="not trusted"):
            await way.fetch(f"https://other.example:{host.port}/", "")
        with pytest.raises(FetchFailed, match="not trusted"):
            await way.fetch(f"https://127.0.0.1:{host.port}/", "")
        with pytest.raises(FetchFailed, match="not trusted"):
            await egress("localhost", names=names).fetch(f"https://localhost:{host.port}/", "")
        assert host.heads == []
        assert (await way.fetch(f"https://localhost:{host.port}/", "")).body == b"sealed"


async def test_a_redirect_never_leads_from_https_to_http() -> None:
    server, trusting = contexts()
    async with asyncio.timeout(30), hosting(saying(b"open")) as plain:
        async with hosting(leading(f"http://127.0.0.1:{plain.port}/end"), tls=server) as host:
            with pytest.raises(UrlRefused, match="from https to http"):
                await egress(OPEN, "localhost", tls=trusting).fetch(f"https://localhost:{host.port}/", "")
        assert plain.connects == 0


async def test_loopback_may_be_named_at_home_and_only_by_its_own_name() -> None:
    names = Names(evil_example=[[GOOD]], corp_example=[["10.0.0.1"]])
    way = egress(names=names)
    for url in ("http://127.0.0.1:8080/mcp", "http://localhost:8080/mcp", "http://[::1]:8080/mcp"):
        assert (await way.vetted(url, "", at_home=True)).addresses
        with pytest.raises(UrlRefused):
            await way.vetted(url, "")
    for url in ("http://evil.example/", "http://corp.example/", "http://10.0.0.1/", "http://[::ffff:127.0.0.1]/"):
        with pytest.raises(UrlRefused):
            await way.vetted(url, "", at_home=True)


async def test_a_target_says_which_addresses_were_vetted() -> None:
    names = Names(good_example=[["1.1.1.1", "2606:4700::1111"], ["127.0.0.1"]])
    target = await egress(names=names).vetted("https://good.example/x", "")
    assert target.addresses == ("1.1.1.1", "2606:4700::1111")
    assert (target.url.host, target.url.port) == ("good.example", 443)


async def test_an_address_that_does_not_answer_makes_room_for_the_next() -> None:
    async with asyncio.timeout(30), hosting(saying(b"second"), "127.0.0.2") as host:
        names = Names(two_example=[["127.0.0.9", "127.0.0.2"]])
        assert (await egress(OPEN, names=names).fetch(f"http://two.example:{host.port}/", "")).body == b"second"


async def silent(head: bytes, writer: Writer) -> None:
    await asyncio.sleep(30)


async def dripping(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(64 * 1024))
        await writer.drain()


async def broken(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()


bomb = saying(gzip.compress(bytes(30 * 1024 * 1024), 1), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    ("behave", "reason", "first", "all_of_it"),
    [
        (silent, "does not answer", 0.3, 60.0),
        (dripping, "longer than", 60.0, 0.6),
        (endless, "sent more than", 60.0, 60.0),
        (broken, "hung up", 60.0, 60.0),
        (bomb, "sent more than", 60.0, 60.0),
        (saying(b"x", "Content-Type: text/html"), "not what was asked for", 60.0, 60.0),
        (saying(b"x", status="403 Forbidden"), "status 403", 60.0, 60.0),
    ],
)
async def test_a_host_that_behaves_badly_is_left_in_time(
    behave: Behaviour, reason: str, first: float, all_of_it: float
) -> None:
    """Each has time only for what it does badly; for the rest a busy machine has more than it needs."""
    caps = Caps(bytes=1024 * 1024, seconds=all_of_it, first_seconds=first, types=("image/",))
    async with asyncio.timeout(20), hosting(behave) as host:
        with pytest.raises(FetchFailed, match=reason) as failed:
            await egress(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "field", caps)
        assert failed.value.param == "field"


async def test_nobody_there_is_an_error_like_any_other() -> None:
    async with asyncio.timeout(30), hosting(saying(b"")) as host:
        pass
    with pytest.raises(FetchFailed, match="cannot be reached"):
        await egress(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")
    with pytest.raises(FetchFailed, match="no host"):
        await egress(OPEN).fetch("http://nobody.example/", "")


async def test_a_resolver_that_never_answers_is_not_waited_for() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    async with asyncio.timeout(30):
        with pytest.raises(FetchFailed, match="longer than"):
            await Egress(Policy(), never).fetch("http://slow.example/", "", Caps(seconds=0.2))


async def test_the_system_is_asked_for_names_in_threads_of_their_own() -> None:
    async with asyncio.timeout(20):
        resolve = SystemResolver()
        assert set(await resolve("localhost", 80)) <= {"127.0.0.1", "::1"}
        with pytest.raises(OSError):  # noqa: PT011 - gaierror, or another one without a network
            await resolve("nobody.invalid", 80)
        asking = [asyncio.ensure_future(resolve("localhost", 80)) for _ in range(50)]
        asking[0].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(one, tuple) for one in found) == 49


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(30), hosting(saying(b"proxied")) as proxy, hosting(saying(b"direct")) as host:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await egress(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")).body == b"direct"
        assert proxy.connects == 0
