"""A URL is read strictly and by this reader alone: what is vetted is what is connected to.

Every host is a plain name or an address in its one usual spelling. What others would read in another way (numbers for
addresses, user names, backslashes, escapes in hosts, blanks) is refused, not repaired.
"""

from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urljoin

from msgspec import Struct

from antiphon.errors import UrlRefused

Address = IPv4Address | IPv6Address

LONGEST: Final = 8192  # characters of a URL
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
_PORTS: Final = {"http": 80, "https": 443}
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_DIGITS: Final = frozenset("0123456789")
# Two standards of international names disagree about these: one maps them away.
_DISPUTED: Final = frozenset("ßς\u200c\u200d")
_IN_TARGET: Final = "%/?:@!$&'()*+,;=~-._[]"  # stays as it is in a path and a query


class Url(Struct, frozen=True):
    scheme: str  # http or https
    host: str  # a name in ASCII and small letters, or the address
    port: int
    target: str  # path and query, in ASCII
    address: Address | None = None  # if the host is one

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def read_url(text: str, param: str) -> Url:
    if len(text) > LONGEST:
        raise UrlRefused(f"The URL has {len(text)} characters; at most {LONGEST} are allowed.", param=param)
    if not text.isprintable() or " " in text or "\\" in text:
        raise UrlRefused("The URL holds blanks, backslashes or characters that cannot be seen.", param=param)
    scheme, colon, rest = text.partition("://")
    kind = scheme.lower()
    if not colon or kind not in _PORTS:
        raise UrlRefused("Only URLs that begin with http:// or https:// are fetched.", param=param)
    rest = rest.partition("#")[0]
    authority = rest[: _authority_end(rest)]
    host, port = _split_port(authority, param)
    name, address = _read_host(host, param)
    number = _PORTS[kind] if port is None else _read_port(port, param)
    return Url(kind, name, number, _target(rest[len(authority) :], param), address)


def read_redirect(base: Url, location: str, param: str) -> Url:
    """Where a redirect leads. It is read as strictly as the URL that a client sent: what names a scheme or a host is
    never taken for a path."""
    if location.startswith("//"):
        return read_url(f"{base.scheme}:{location}", param)
    if ":" in location[: _authority_end(location)]:
        return read_url(location, param)
    if not location.isprintable() or " " in location or "\\" in location:
        raise UrlRefused(f"{base.host} redirects to something that is no URL.", param=param)
    return read_url(urljoin(str(base), location), param)


def _authority_end(rest: str) -> int:
    return min([place for place in (rest.find("/"), rest.find("?")) if place >= 0], default=len(rest))


def _split_port(authority: str, param: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise UrlRefused("A URL with a user name or a password is not fetched.", param=param)
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _odd_host(param)
        return host + bracket, port[1:] if port else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _read_port(text: str, param: str) -> int:
    plain = 0 < len(text) <= 5 and _DIGITS.issuperset(text) and not text.startswith("0")
    if not plain or int(text) > 65535:
        raise UrlRefused("The URL's port is no number from 1 to 65535.", param=param)
    return int(text)


def _read_host(host: str, param: str) -> tuple[str, Address | None]:
    try:
        if host.startswith("["):
            if "%" in host:  # a zone: it means something on one machine only
                raise _odd_host(param)
            six = IPv6Address(host[1:-1])
            return str(six), six
        name = host_name(host)
        if is_numeric(name):
            four = IPv4Address(name)
            return str(four), four
    except ValueError:  # UnicodeError is one
        raise _odd_host(param)
    return name, None


def host_name(host: str) -> str:
    """In ASCII and small letters, without a dot at its end; ValueError if it is none."""
    if len(host) > _LONGEST_NAME + 1 or not _DISPUTED.isdisjoint(host):
        raise ValueError(host)
    plain = host.isascii()
    name = (host if plain else host.encode("idna").decode("ascii")).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(map(_is_label, labels)):
        raise ValueError(host)
    if not plain and is_numeric(name):  # digits of other scripts
        raise ValueError(host)
    return name


def _is_label(label: str) -> bool:
    edges = label[:1] != "-" and label[-1:] != "-"
    return 0 < len(label) <= _LONGEST_LABEL and edges and _NAME.issuperset(label)


def is_numeric(name: str) -> bool:
    """Whether some reader may take it for an address: its last label is a number, in whatever base."""
    last = name.rpartition(".")[2]
    return _DIGITS.issuperset(last) or (last.startswith("0x") and all(char in "0123456789abcdef" for char in last[2:]))


def _target(rest: str, param: str) -> str:
    try:
        target = quote(rest, safe=_IN_TARGET)
    except UnicodeEncodeError:
        raise UrlRefused("The URL holds half a character.", param=param)
    return target if target.startswith("/") else f"/{target}"


def _odd_host(param: str) -> UrlRefused:
    return UrlRefused(
        "The URL's host is neither a plain name nor an address in its usual spelling (192.0.2.1, [2001:db8::1]).",
        param=param,
    )
