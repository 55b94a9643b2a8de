"""What may be connected to: public addresses on ports where HTTP is spoken, and what the operator opened.

An entry of --allow-egress is a host, an address or a network, each with a port or without: it opens what it names on
that port, or on every port.
"""

from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from antiphon.egress.addresses import is_own, special
from antiphon.egress.urls import Address, Url, host_name
from antiphon.errors import StartupError

Network = IPv4Network | IPv6Network

_HTTP: Final = frozenset({80, 443})
_FIRST_FREE: Final = 1024
# Services that take commands from strangers who can reach them, or that browsers keep away from.
_OTHERS: Final = frozenset({
    1080, 1433, 1434, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3128, 3268, 3269, 3306,
    3389, 3659, 4045, 4190, 4369, 5060, 5061, 5432, 5433, 5672, 5900, 5984, 5985, 5986, 6000, 6379, 6380, 6443, 6566,
    6665, 6666, 6667, 6668, 6669, 6679, 6697, 7000, 7001, 8086, 8125, 8500, 9042, 9092, 9160, 9200, 9300, 10080, 10250,
    10255, 11211, 15672, 26379, 27017, 27018, 27019, 50000, 61616,
})  # fmt: skip


class Rule(Struct, frozen=True, kw_only=True):
    name: str | None = None
    network: Network | None = None
    port: int | None = None

    def opens(self, url: Url, address: Address) -> bool:
        if self.port is not None and self.port != url.port:
            return False
        if self.name is not None:
            return url.host == self.name
        return self.network is not None and self.network.version == address.version and address in self.network


class Policy:
    def __init__(self, opened: Iterable[str] = (), own: Callable[[Address], bool] = is_own) -> None:
        """Raises a StartupError for what is no entry. `own` knows the machine's addresses."""
        self._rules = tuple(_rule(entry) for entry in opened)
        self._own = own

    def opening(self, *entries: str) -> "Policy":
        """The same, and these are open too."""
        policy = Policy(entries, self._own)
        policy._rules += self._rules
        return policy

    def objection(self, url: Url, address: Address) -> str | None:
        """Why the URL may not be fetched from this address; None if it may."""
        if any(rule.opens(url, address) for rule in self._rules):
            return None
        if what := special(address):
            return f"{_subject(url)} {what}"
        if self._own(address):
            return f"{_subject(url)} an address of this machine"
        if url.port not in _HTTP and (url.port < _FIRST_FREE or url.port in _OTHERS):
            return f"Port {url.port} is not one for HTTP"
        return None


def _subject(url: Url) -> str:
    return f"{url.host} is" if url.address is not None else f"{url.host} leads to"


def _rule(entry: str) -> Rule:
    host, port = _split(entry)
    if "/" in host or ":" in host or host.replace(".", "").isdigit():
        return Rule(network=_network(host, entry), port=port)
    try:
        return Rule(name=host_name(host), port=port)
    except ValueError:
        raise _unfit(entry)


def _split(entry: str) -> tuple[str, int | None]:
    """Of `host:port` and `[address]:port`; an address of IPv6 without brackets is all address."""
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _unfit(entry)
        return host, _port(rest[1:], entry) if rest else None
    if entry.count(":") == 1:
        host, _, port = entry.partition(":")
        return host, _port(port, entry)
    return entry, None


def _port(text: str, entry: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise _unfit(entry)
    return int(text)


def _network(text: str, entry: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise _unfit(entry)


def _unfit(entry: str) -> StartupError:
    return StartupError(
        f"--allow-egress is {entry!r}; expected HOST, HOST:PORT, an address or a network like 10.0.0.0/8."
    )
