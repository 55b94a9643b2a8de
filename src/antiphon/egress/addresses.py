"""Which addresses are public. Of IPv4 what is special is listed; of IPv6 only global unicast is public at all.

Sources: IANA's registries of special-purpose addresses, RFC 6890, and the metadata services of cloud providers.
"""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from antiphon.egress.urls import Address

_PRIVATE, _LOOPBACK, _LINK = "a private address", "a loopback address", "a link-local address"
_RESERVED, _SHOWN = "a reserved address", "an address for documentation"

_FOUR: Final = [
    (IPv4Network(network), what)
    for network, what in {
        "0.0.0.0/8": "an address of this machine",
        "10.0.0.0/8": _PRIVATE,
        "100.64.0.0/10": "an address shared by a provider's customers",
        "127.0.0.0/8": _LOOPBACK,
        "168.63.129.16/32": "a cloud's service for its machines",
        "169.254.0.0/16": _LINK,
        "172.16.0.0/12": _PRIVATE,
        "192.0.0.0/24": _RESERVED,
        "192.0.2.0/24": _SHOWN,
        "192.31.196.0/24": _RESERVED,
        "192.52.193.0/24": _RESERVED,
        "192.88.99.0/24": _RESERVED,
        "192.168.0.0/16": _PRIVATE,
        "192.175.48.0/24": _RESERVED,
        "198.18.0.0/15": "an address for benchmarks",
        "198.51.100.0/24": _SHOWN,
        "203.0.113.0/24": _SHOWN,
        "224.0.0.0/4": "a multicast address",
        "240.0.0.0/4": _RESERVED,
    }.items()
]
_GLOBAL: Final = IPv6Network("2000::/3")
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")  # NAT64: how a machine without IPv4 reaches it
_SIX: Final = [
    (IPv6Network(network), what)
    for network, what in {
        "::/128": "an address of this machine",
        "::1/128": _LOOPBACK,
        "::/96": "an IPv4 address in the guise of another",
        "::ffff:0:0/96": "an IPv4 address in the guise of another",
        "::ffff:0:0:0/96": "an IPv4 address in the guise of another",
        "64:ff9b:1::/48": "an IPv4 address in the guise of another",
        "2001::/23": _RESERVED,  # Teredo, ORCHID and benchmarks are in it
        "2001:db8::/32": _SHOWN,
        "2002::/16": "an IPv4 address in the guise of another",
        "3fff::/20": _SHOWN,
        "fc00::/7": _PRIVATE,
        "fe80::/10": _LINK,
        "fec0::/10": _PRIVATE,
        "ff00::/8": "a multicast address",
    }.items()
]
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def special(address: Address) -> str | None:
    """What an address is that strangers have no business with; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _FOUR if address in network), None)
    if address in _TRANSLATED:
        return special(IPv4Address(int(address) & 0xFFFFFFFF))
    found = next((what for network, what in _SIX if address in network), None)
    if found is None and address not in _GLOBAL:
        return _RESERVED
    if found is None and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return special(IPv4Address(int(address) & 0xFFFFFFFF))
    return found


def is_own(address: Address) -> bool:
    """Whether it is one of this machine's: what is sent there would come from there, or from loopback. Nothing is sent
    to find out."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            sender = read_address(probe.getsockname()[0])
    except OSError:
        return False  # no way leads there
    return sender is not None and (sender == address or sender.is_loopback)


def read_address(text: str) -> Address | None:
    """As resolvers give it; None for what is no address, and for one with a zone."""
    try:
        return IPv6Address(text) if ":" in text and "%" not in text else IPv4Address(text)
    except ValueError:
        return None
