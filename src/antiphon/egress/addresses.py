"""Classification of addresses as public or special. For IPv6 only global unicast is public.

Sources: the IANA special-purpose address registries (RFC 6890) and the metadata services of cloud providers.
"""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from antiphon.egress.urls import Address

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


def is_local_address(address: Address) -> bool:
    """Whether the address belongs to this machine: traffic to it would come from the address itself or from loopback.

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
