"""The egress policy: public addresses on HTTP ports are allowed, and whatever the operator opened.

An entry of --allow-egress is a host, an address or a network, optionally with a port: it opens that destination on this
port, or on every port. Addresses are special by the IANA special-purpose address registries (RFC 6890), or as metadata
services of cloud providers; for IPv6 only global unicast is public. Names are resolved once per hop: the caller vets
all returned addresses and connects to no other.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from antiphon.egress.urls import Address, Url, normalise_host, parse_port
from antiphon.errors import StartupError

_PRIVATE, _LOOPBACK, _LINK_LOCAL = "a private address", "a loopback address", "a link-local address"
_RESERVED, _DOCUMENTATION = "a reserved address", "an address for documentation"

_SPECIAL_IPV4: Final = [
    (IPv4Network(network), what)
    for network, what in {
        "0.0.0.0/8": "an address of this machine",
        "10.0.0.0/8": _PRIVATE,
        "100.64.0.0/10": "an address shared by a provider's customers",
        "127.0.0.0/8": _LOOPBACK,
        "168.63.129.16/32": "a cloud's service for its machines",
        "169.254.0.0/16": _LINK_LOCAL,
        "172.16.0.0/12": _PRIVATE,
        "192.0.0.0/24": _RESERVED,
        "192.0.2.0/24": _DOCUMENTATION,
        "192.31.196.0/24": _RESERVED,
        "192.52.193.0/24": _RESERVED,
        "192.88.99.0/24": _RESERVED,
        "192.168.0.0/16": _PRIVATE,
        "192.175.48.0/24": _RESERVED,
        "198.18.0.0/15": "an address for benchmarks",
        "198.51.100.0/24": _DOCUMENTATION,
        "203.0.113.0/24": _DOCUMENTATION,
        "224.0.0.0/4": "a multicast address",
        "240.0.0.0/4": _RESERVED,
    }.items()
]
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")  # NAT64 (RFC 6052): how a host without IPv4 reaches IPv4 addresses
_SPECIAL_IPV6: Final = [
    (IPv6Network(network), what)
    for network, what in {
        "::/128": "an address of this machine",
        "::1/128": _LOOPBACK,
        "::/96": "an IPv4 address in the guise of another",
        "::ffff:0:0/96": "an IPv4 address in the guise of another",
        "::ffff:0:0:0/96": "an IPv4 address in the guise of another",
        "64:ff9b:1::/48": "an IPv4 address in the guise of another",
        "2001::/23": _RESERVED,  # includes Teredo, ORCHID and benchmarking
        "2001:db8::/32": _DOCUMENTATION,
        "2002::/16": "an IPv4 address in the guise of another",
        "3fff::/20": _DOCUMENTATION,
        "fc00::/7": _PRIVATE,
        "fe80::/10": _LINK_LOCAL,
        "fec0::/10": _PRIVATE,
        "ff00::/8": "a multicast address",
    }.items()
]
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def describe_special(address: Address) -> str | None:
    """Describe an address that is not public; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((description for network, description in _SPECIAL_IPV4 if address in network), None)
    if address in _NAT64:
        return describe_special(IPv4Address(int(address) & 0xFFFFFFFF))
    found = next((description for network, description in _SPECIAL_IPV6 if address in network), None)
    if found is None and address not in _GLOBAL_UNICAST:
        return _RESERVED
    if found is None and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return describe_special(IPv4Address(int(address) & 0xFFFFFFFF))
    return found


def is_loopback(address: Address) -> bool:
    """Return whether the address itself is loopback: Python 3.13's `is_loopback` includes IPv4 mapped into IPv6."""
    return address.is_loopback and describe_special(address) == _LOOPBACK


def is_local_address(address: Address) -> bool:
    """Return whether the address is one of this machine: traffic to it would come from itself or from loopback.

    Connecting a UDP socket selects the source address without sending anything.
    """
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            sender = parse_address(probe.getsockname()[0])
    except OSError:
        return False  # no route
    return sender is not None and (sender == address or sender.is_loopback)


def parse_address(text: str) -> Address | None:
    """Parse an address from a resolver; None for anything else, and for an address with a zone."""
    try:
        return IPv6Address(text) if ":" in text and "%" not in text else IPv4Address(text)
    except ValueError:
        return None


Network = IPv4Network | IPv6Network

_HTTP_PORTS: Final = frozenset({80, 443})
_FIRST_UNPRIVILEGED: Final = 1024
# Services that accept commands from any client, or ports that browsers block.
_BLOCKED_PORTS: Final = frozenset({
    1080, 1433, 1434, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3128, 3268, 3269, 3306,
    3389, 3659, 4045, 4190, 4369, 5060, 5061, 5432, 5433, 5672, 5900, 5984, 5985, 5986, 6000, 6379, 6380, 6443, 6566,
    6665, 6666, 6667, 6668, 6669, 6679, 6697, 7000, 7001, 8086, 8125, 8500, 9042, 9092, 9160, 9200, 9300, 10080, 10250,
    10255, 11211, 15672, 26379, 27017, 27018, 27019, 50000, 61616,
})  # fmt: skip


class EgressRule(Struct, frozen=True, kw_only=True):
    """One entry of --allow-egress."""

    name: str | None = None
    network: Network | None = None
    port: int | None = None

    def allows(self, url: Url, address: Address) -> bool:
        if self.port is not None and self.port != url.port:
            return False
        if self.name is not None:
            return url.host == self.name
        return self.network is not None and self.network.version == address.version and address in self.network


class EgressPolicy:
    """Decides which destinations are allowed."""

    def __init__(self, entries: Iterable[str] = (), is_local: Callable[[Address], bool] = is_local_address) -> None:
        """Parse the entries. Raises StartupError for an invalid one. `is_local` detects addresses of this machine."""
        self._rules = tuple(_parse_rule(entry) for entry in entries)
        self._is_local = is_local

    def extend(self, *entries: str) -> "EgressPolicy":
        """Return a policy that also allows these entries."""
        policy = EgressPolicy(entries, self._is_local)
        policy._rules += self._rules
        return policy

    def find_objection(self, url: Url, address: Address) -> str | None:
        """Return why the URL may not be fetched from this address; None if it may."""
        if any(rule.allows(url, address) for rule in self._rules):
            return None
        if description := describe_special(address):
            return f"{_subject(url)} {description}"
        if self._is_local(address):
            return f"{_subject(url)} an address of this machine"
        if url.port not in _HTTP_PORTS and (url.port < _FIRST_UNPRIVILEGED or url.port in _BLOCKED_PORTS):
            return f"Port {url.port} is not one for HTTP"
        return None


def _subject(url: Url) -> str:
    return f"{url.host} is" if url.address is not None else f"{url.host} leads to"


def _parse_rule(entry: str) -> EgressRule:
    try:
        host, port = _split_port(entry)
        if "/" in host or ":" in host or host.replace(".", "").isdigit():
            return EgressRule(network=ip_network(host), port=port)
        return EgressRule(name=normalise_host(host), port=port)
    except ValueError:
        raise StartupError(
            f"--allow-egress is {entry!r}; expected HOST, HOST:PORT, an address or a network like 10.0.0.0/8."
        ) from None


def _split_port(entry: str) -> tuple[str, int | None]:
    """Split `host:port` and `[address]:port`; an IPv6 address without brackets has no port. Raises ValueError."""
    host, colon, port = entry, "", ""
    if entry.startswith("["):
        host, bracket, suffix = entry[1:].partition("]")
        colon, port = suffix[:1], suffix[1:]
        if not bracket or colon not in ("", ":"):
            raise ValueError(entry)
    elif entry.count(":") == 1:
        host, colon, port = entry.partition(":")
    return host, parse_port(port) if colon else None


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # name and port → addresses; raises OSError if there are none

_MAX_LOOKUPS = 16


class SystemResolver:
    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Resolve a name. After a cancellation the thread occupies its slot until the lookup ends."""
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        lookup: Future[Sequence[str]] = Future()
        lookup.set_running_or_notify_cancel()

        def look_up() -> None:
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                lookup.set_result(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))
            except (OSError, UnicodeError) as error:
                lookup.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._slots.release)

        threading.Thread(target=look_up, daemon=True).start()
        return await asyncio.wrap_future(lookup)
