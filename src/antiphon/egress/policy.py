"""The egress policy: public addresses on HTTP ports are allowed, and whatever the operator opened.

An entry of --allow-egress is a host, an address or a network, optionally with a port: it opens that destination on this
port, or on every port.
"""

from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from antiphon.egress.addresses import describe_special, is_local_address
from antiphon.egress.urls import Address, Url, normalise_host
from antiphon.errors import StartupError

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
    host, port = _split_port(entry)
    if "/" in host or ":" in host or host.replace(".", "").isdigit():
        return EgressRule(network=_parse_network(host, entry), port=port)
    try:
        return EgressRule(name=normalise_host(host), port=port)
    except ValueError:
        raise _make_entry_error(entry)


def _split_port(entry: str) -> tuple[str, int | None]:
    """Split `host:port` and `[address]:port`; an IPv6 address without brackets has no port."""
    if entry.startswith("["):
        host, bracket, suffix = entry[1:].partition("]")
        if not bracket or (suffix and not suffix.startswith(":")):
            raise _make_entry_error(entry)
        return host, _parse_port(suffix[1:], entry) if suffix else None
    if entry.count(":") == 1:
        host, _, port = entry.partition(":")
        return host, _parse_port(port, entry)
    return entry, None


def _parse_port(text: str, entry: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise _make_entry_error(entry)
    return int(text)


def _parse_network(text: str, entry: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise _make_entry_error(entry)


def _make_entry_error(entry: str) -> StartupError:
    return StartupError(
        f"--allow-egress is {entry!r}; expected HOST, HOST:PORT, an address or a network like 10.0.0.0/8."
    )
