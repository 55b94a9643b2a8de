"""The egress client vets every hop, connects to the vetted address, and limits the response."""

import asyncio
import gzip
import socket
import ssl
import threading

import pytest

from antiphon.egress import EgressClient, EgressPolicy, FetchLimits
from antiphon.egress.policy import SystemResolver
from antiphon.errors import FetchFailed, UrlRefused
from tests.egress.hosts import (
    Behaviour,
    FakeResolver,
    build_redirect,
    build_response,
    make_egress_client,
    respond_with,
    run_host,
)
from tests.support.local_servers import Writer
from tests.support.paths import TLS

pytestmark = pytest.mark.anyio

GOOD = "127.0.0.1"
OPEN = "127.0.0.0/8"


async def test_an_allowed_url_is_fetched() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"pixels", "Content-Type: image/png")) as host:
        resolver = FakeResolver(pictures_example=[[GOOD]])
        fetched = await make_egress_client(f"pictures.example:{host.port}", resolver=resolver).fetch(
            f"http://pictures.example:{host.port}/a%20b?c=d#e", "field"
        )
        assert (fetched.body, fetched.media_type) == (b"pixels", "image/png")
        assert host.paths == ["/a%20b?c=d"]
        head = host.heads[0].decode().lower()
        assert f"host: pictures.example:{host.port}\r\n" in head
        assert not any(name in head for name in ("cookie", "authorization", "referer", "proxy"))
        assert resolver.queries == ["pictures.example"]


async def test_addresses_that_are_not_allowed_are_never_connected_to() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"secret")) as host:
        resolver = FakeResolver(evil_example=[[GOOD]], mixed_example=[["1.1.1.1", GOOD]], zone_example=[["fe80::1%lo"]])
        client = make_egress_client(resolver=resolver)
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
                await client.fetch(url, "input[0].content[0].image_url")
            assert refused.value.param == "input[0].content[0].image_url"
            if "zone" not in url:
                assert "--allow-egress " in refused.value.message
        assert host.connects == 0


@pytest.mark.shows("E.11")
async def test_the_error_names_the_flag_that_allows_exactly_this_url() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"now")) as host:
        url = f"http://127.0.0.1:{host.port}/"
        with pytest.raises(UrlRefused) as refused:
            await make_egress_client().fetch(url, "")
        entry = refused.value.message.partition("--allow-egress ")[2].removesuffix(".")
        assert entry == f"127.0.0.1:{host.port}"
        assert (await make_egress_client(entry).fetch(url, "")).body == b"now"


async def test_a_rebinding_name_is_resolved_once_per_hop() -> None:
    """DNS rebinding: the first result is vetted and connected to; later results are not used."""
    async with asyncio.timeout(30), run_host(respond_with(b"harmless"), "127.0.0.3") as host:
        for _ in range(100):
            resolver = FakeResolver(rebound_example=[["127.0.0.3"], ["127.0.0.1"]])
            fetched = await make_egress_client("127.0.0.3", resolver=resolver).fetch(
                f"http://rebound.example:{host.port}/", ""
            )
            assert fetched.body == b"harmless"
            assert resolver.queries == ["rebound.example"]


async def test_every_hop_is_vetted() -> None:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(build_redirect(f"http://rebound.example:{host.port}/again"))

    async with asyncio.timeout(30), run_host(respond_with(b"secret")) as canary, run_host(behave, "127.0.0.3") as host:
        resolver = FakeResolver(rebound_example=[["127.0.0.3"], ["127.0.0.1"]])
        with pytest.raises(UrlRefused, match="loopback"):
            await make_egress_client("127.0.0.3", resolver=resolver).fetch(f"http://rebound.example:{host.port}/", "")
        assert resolver.queries == ["rebound.example"] * 2
        assert (host.connects, canary.connects) == (1, 0)


def redirect_to(to: str, status: int = 302) -> Behaviour:
    async def behave(head: bytes, writer: Writer) -> None:
        if b"GET /end " in head:
            writer.write(build_response(b"there"))
        else:
            writer.write(build_redirect(to, status))

    return behave


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_an_allowed_url_is_followed(status: int) -> None:
    async with asyncio.timeout(30), run_host(redirect_to("/end", status)) as host:
        fetched = await make_egress_client(OPEN).fetch(f"http://127.0.0.1:{host.port}/begin", "")
        assert fetched.body == b"there"
        assert fetched.url == f"http://127.0.0.1:{host.port}/end"
        assert host.paths == ["/begin", "/end"]


async def test_a_redirect_to_any_other_url_is_rejected() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"secret"), "127.0.0.1") as canary:
        at = f"127.0.0.1:{canary.port}"
        for to in (
            *(f"http://{at}/", f"//{at}/", f"http://localhost:{canary.port}/", f"http://a@{at}/"),
            *("http://169.254.169.254/x", "file:///etc/passwd", "http://0x7f.1/"),
        ):
            async with run_host(redirect_to(to), "127.0.0.3") as host:
                with pytest.raises(UrlRefused):
                    await make_egress_client("127.0.0.3").fetch(f"http://127.0.0.3:{host.port}/", "")
        assert canary.connects == 0


async def test_the_number_of_redirects_is_limited() -> None:
    async with asyncio.timeout(30), run_host(redirect_to("/again")) as host:
        with pytest.raises(FetchFailed, match="more than 5 times"):
            await make_egress_client(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")
        assert host.connects == 6


def make_tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server for localhost and of a client that trusts it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return server, ssl.create_default_context(cafile=TLS / "certificate.pem")


async def test_tls_is_verified_against_the_name_in_the_url_and_not_the_address() -> None:
    server, trusting = make_tls_contexts()
    async with asyncio.timeout(30), run_host(respond_with(b"sealed"), tls=server) as host:
        resolver = FakeResolver(other_example=[[GOOD]])
        client = make_egress_client(OPEN, "localhost", resolver=resolver, tls=trusting)
        with pytest.raises(FetchFailed, match="not trusted"):
            await client.fetch(f"https://other.example:{host.port}/", "")
        with pytest.raises(FetchFailed, match="not trusted"):
            await client.fetch(f"https://127.0.0.1:{host.port}/", "")
        with pytest.raises(FetchFailed, match="not trusted"):
            await make_egress_client("localhost", resolver=resolver).fetch(f"https://localhost:{host.port}/", "")
        assert host.heads == []
        assert (await client.fetch(f"https://localhost:{host.port}/", "")).body == b"sealed"


async def test_a_redirect_never_leads_from_https_to_http() -> None:
    server, trusting = make_tls_contexts()
    async with asyncio.timeout(30), run_host(respond_with(b"open")) as plain:
        async with run_host(redirect_to(f"http://127.0.0.1:{plain.port}/end"), tls=server) as host:
            with pytest.raises(UrlRefused, match="from https to http"):
                await make_egress_client(OPEN, "localhost", tls=trusting).fetch(f"https://localhost:{host.port}/", "")
        assert plain.connects == 0


async def test_loopback_urls_can_be_allowed_only_by_their_own_names() -> None:
    resolver = FakeResolver(evil_example=[[GOOD]], corp_example=[["10.0.0.1"]])
    client = make_egress_client(resolver=resolver)
    for url in ("http://127.0.0.1:8080/mcp", "http://localhost:8080/mcp", "http://[::1]:8080/mcp"):
        assert (await client.vet(url, "", allow_loopback=True)).addresses
        with pytest.raises(UrlRefused):
            await client.vet(url, "")
    for url in ("http://evil.example/", "http://corp.example/", "http://10.0.0.1/", "http://[::ffff:127.0.0.1]/"):
        with pytest.raises(UrlRefused):
            await client.vet(url, "", allow_loopback=True)


async def test_a_target_has_the_addresses_that_were_vetted() -> None:
    resolver = FakeResolver(good_example=[["1.1.1.1", "2606:4700::1111"], ["127.0.0.1"]])
    target = await make_egress_client(resolver=resolver).vet("https://good.example/x", "")
    assert target.addresses == ("1.1.1.1", "2606:4700::1111")
    assert (target.url.host, target.url.port) == ("good.example", 443)


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"second"), "127.0.0.2") as host:
        resolver = FakeResolver(two_example=[["127.0.0.9", "127.0.0.2"]])
        assert (
            await make_egress_client(OPEN, resolver=resolver).fetch(f"http://two.example:{host.port}/", "")
        ).body == b"second"


async def stay_silent(head: bytes, writer: Writer) -> None:
    await asyncio.sleep(30)


async def drip_bytes(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def send_endlessly(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(64 * 1024))
        await writer.drain()


async def abort_midway(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()


gzip_bomb = respond_with(gzip.compress(bytes(30 * 1024 * 1024), 1), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    ("behave", "reason", "first", "total"),
    [
        (stay_silent, "does not answer", 0.3, 60.0),
        (drip_bytes, "longer than", 60.0, 0.6),
        (send_endlessly, "sent more than", 60.0, 60.0),
        (abort_midway, "closed the connection", 60.0, 60.0),
        (gzip_bomb, "sent more than", 60.0, 60.0),
        (respond_with(b"x", "Content-Type: text/html"), "not what was asked for", 60.0, 60.0),
        (respond_with(b"x", status="403 Forbidden"), "status 403", 60.0, 60.0),
    ],
)
async def test_a_misbehaving_host_is_abandoned_in_time(
    behave: Behaviour, reason: str, first: float, total: float
) -> None:
    """Only the timeout under test is short; the others leave enough time for a busy machine."""
    caps = FetchLimits(bytes=1024 * 1024, seconds=total, first_byte_seconds=first, media_types=("image/",))
    async with asyncio.timeout(20), run_host(behave) as host:
        with pytest.raises(FetchFailed, match=reason) as failed:
            await make_egress_client(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "field", caps)
        assert failed.value.param == "field"


async def test_unreachable_hosts_and_unknown_names_are_fetch_errors() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"")) as host:
        pass
    with pytest.raises(FetchFailed, match="cannot be reached"):
        await make_egress_client(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")
    with pytest.raises(FetchFailed, match="no host"):
        await make_egress_client(OPEN).fetch("http://nobody.example/", "")


async def test_a_resolver_that_never_returns_times_out() -> None:
    async def never_resolve(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    async with asyncio.timeout(30):
        with pytest.raises(FetchFailed, match="longer than"):
            await EgressClient(EgressPolicy(), never_resolve).fetch(
                "http://slow.example/", "", FetchLimits(seconds=0.2)
            )


async def test_the_system_resolver_runs_in_its_own_threads() -> None:
    async with asyncio.timeout(20):
        resolve = SystemResolver()
        assert set(await resolve("localhost", 80)) <= {"127.0.0.1", "::1"}
        with pytest.raises(OSError):  # noqa: PT011 - gaierror, or another one without a network
            await resolve("nobody.invalid", 80)
        lookups = [asyncio.ensure_future(resolve("localhost", 80)) for _ in range(50)]
        lookups[0].cancel()
        found = await asyncio.gather(*lookups, return_exceptions=True)
        assert sum(isinstance(one, tuple) for one in found) == 49


async def test_the_number_of_lookups_at_a_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    free, before = threading.Event(), {*threading.enumerate()}

    def look_up(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        free.wait(30)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolve = SystemResolver()
    lookups = [asyncio.ensure_future(resolve("slow.example", 80)) for _ in range(40)]
    for _ in range(3):
        await asyncio.sleep(0)
    running = len({*threading.enumerate()} - before)  # those of other tests may end meanwhile
    free.set()
    assert await asyncio.gather(*lookups) == [("127.0.0.1",)] * 40
    assert running == 16


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        asyncio.timeout(30),
        run_host(respond_with(b"proxied")) as proxy,
        run_host(respond_with(b"direct")) as host,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await make_egress_client(OPEN).fetch(f"http://127.0.0.1:{host.port}/", "")).body == b"direct"
        assert proxy.connects == 0
