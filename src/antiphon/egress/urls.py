"""Strict URL parsing. All egress code uses this parser only, so the vetted URL is the one that is connected to.

A host is a plain name or an address in its canonical spelling. Anything that other parsers may read differently
(numbers for addresses, user names, backslashes, escapes in hosts, blanks) is rejected, not repaired.
"""

from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urljoin

from msgspec import Struct

from antiphon.errors import UrlRefused

Address = IPv4Address | IPv6Address

MAX_URL_LENGTH: Final = 8192  # characters
_MAX_NAME_LENGTH, _MAX_LABEL_LENGTH = 253, 63
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_DIGITS: Final = frozenset("0123456789")
# IDNA 2003 and IDNA 2008 disagree about these characters: IDNA 2003 maps them to others or removes them.
_DISPUTED: Final = frozenset("ßς\u200c\u200d")
_TARGET_SAFE: Final = "%/?:@!$&'()*+,;=~-._[]"  # characters not escaped in path and query


class Url(Struct, frozen=True):
    scheme: str  # http or https
    host: str  # a name in lower-case ASCII, or the address
    port: int
    target: str  # path and query, in ASCII
    address: Address | None = None  # set if the host is an address

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str, param: str) -> Url:
    """Parse a URL. Raises UrlRefused, naming `param`."""
    if len(text) > MAX_URL_LENGTH:
        raise UrlRefused(f"The URL has {len(text)} characters; at most {MAX_URL_LENGTH} are allowed.", param=param)
    if not text.isprintable() or " " in text or "\\" in text:
        raise UrlRefused("The URL holds blanks, backslashes or characters that cannot be seen.", param=param)
    scheme, colon, remainder = text.partition("://")
    kind = scheme.lower()
    if not colon or kind not in _DEFAULT_PORTS:
        raise UrlRefused("Only URLs that begin with http:// or https:// are fetched.", param=param)
    remainder = remainder.partition("#")[0]
    authority = remainder[: _authority_end(remainder)]
    host, port = _split_port(authority, param)
    name, address = _parse_host(host, param)
    try:
        number = _DEFAULT_PORTS[kind] if port is None else parse_port(port)
    except ValueError:
        raise UrlRefused("The URL's port is no number from 1 to 65535.", param=param) from None
    return Url(kind, name, number, _encode_target(remainder[len(authority) :], param), address)


def parse_redirect(base: Url, location: str, param: str) -> Url:
    """Parse the target of a redirect as strictly as a client's URL: one with a scheme or host is never a path."""
    if location.startswith("//"):
        return parse_url(f"{base.scheme}:{location}", param)
    if ":" in location[: _authority_end(location)]:
        return parse_url(location, param)
    if not location.isprintable() or " " in location or "\\" in location:
        raise UrlRefused(f"{base.host} redirects to something that is no URL.", param=param)
    return parse_url(urljoin(str(base), location), param)


def _authority_end(text: str) -> int:
    return min([index for index in (text.find("/"), text.find("?")) if index >= 0], default=len(text))


def _split_port(authority: str, param: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise UrlRefused("A URL with a user name or a password is not fetched.", param=param)
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _make_host_error(param)
        return host + bracket, port[1:] if port else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def parse_port(text: str) -> int:
    """Parse a port in its usual spelling. Raises ValueError."""
    is_plain = len(text) <= 5 and _DIGITS.issuperset(text) and not text.startswith("0")
    if not is_plain or int(text) > 65535:
        raise ValueError(text)
    return int(text)


def _parse_host(host: str, param: str) -> tuple[str, Address | None]:
    try:
        if host.startswith("["):
            if "%" in host:  # a zone is meaningful on one machine only
                raise _make_host_error(param)
            ipv6 = IPv6Address(host[1:-1])
            return str(ipv6), ipv6
        name = normalise_host(host)
        if is_numeric(name):
            ipv4 = IPv4Address(name)
            return str(ipv4), ipv4
    except ValueError:  # includes UnicodeError
        raise _make_host_error(param)
    return name, None


def normalise_host(host: str) -> str:
    """Convert a host name to lower-case ASCII without a trailing dot. Raises ValueError if it is invalid."""
    if len(host) > _MAX_NAME_LENGTH + 1 or not _DISPUTED.isdisjoint(host):
        raise ValueError(host)
    is_ascii = host.isascii()
    name = (host if is_ascii else host.encode("idna").decode("ascii")).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _MAX_NAME_LENGTH or not all(map(_is_label, labels)):
        raise ValueError(host)
    if not is_ascii and is_numeric(name):  # digits of other scripts
        raise ValueError(host)
    return name


def _is_label(label: str) -> bool:
    has_valid_edges = label[:1] != "-" and label[-1:] != "-"
    return 0 < len(label) <= _MAX_LABEL_LENGTH and has_valid_edges and _NAME_CHARACTERS.issuperset(label)


def is_numeric(name: str) -> bool:
    """Return whether a parser may read the name as an IPv4 address: its last label is a number (WHATWG URL)."""
    last = name.rpartition(".")[2]
    return _DIGITS.issuperset(last) or (last.startswith("0x") and all(char in "0123456789abcdef" for char in last[2:]))


def _encode_target(text: str, param: str) -> str:
    try:
        target = quote(text, safe=_TARGET_SAFE)
    except UnicodeEncodeError:
        raise UrlRefused("The URL holds half a character.", param=param)
    return target if target.startswith("/") else f"/{target}"


def _make_host_error(param: str) -> UrlRefused:
    return UrlRefused(
        "The URL's host is neither a plain name nor an address in its usual spelling (192.0.2.1, [2001:db8::1]).",
        param=param,
    )
