"""Spellings of forbidden destinations: addresses in every notation that some URL parser accepts, names that resolve to
them, and URLs whose host differs between parsers.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

IPV4_ADDRESSES = (
    "127.0.0.1", "127.0.0.53", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255",
)  # fmt: skip
IPV6_ADDRESSES = ("::", "::1", "fe80::1", "fd00:ec2::254", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1")
HOST_NAMES = (
    "localhost", "LOCALHOST", "localhost.", "a.localhost", "ip6-localhost", "localhost.localdomain", "loopback",
    "metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal", "kubernetes.default.svc",
    "host.docker.internal", "gateway.docker.internal", "redis", "postgres.default.svc.cluster.local", "router.local",
    "127.0.0.1.nip.io", "7f000001.nip.io", "spoofed.example.com", "xn--lcalhost-n4a.example",
)  # fmt: skip
SCHEMES = (
    "file:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "/etc/passwd", "ftp://127.0.0.1/",
    "gopher://127.0.0.1:6379/_FLUSHALL", "dict://127.0.0.1:11211/stats", "ldap://127.0.0.1/", "sftp://127.0.0.1/",
    "tftp://127.0.0.1/x", "unix:///run/docker.sock", "http+unix://%2Frun%2Fdocker.sock/x", "jar:http://127.0.0.1!/",
    "netdoc:///etc/passwd", "php://filter", "ws://127.0.0.1/", "javascript:0", "about:blank", "blob:http://127.0.0.1/x",
    "view-source:http://127.0.0.1/", "url:http://127.0.0.1/", "//127.0.0.1/", "http:127.0.0.1", "http:/127.0.0.1/",
)  # fmt: skip
PORTS = (1, 7, 21, 22, 23, 25, 53, 110, 139, 143, 389, 445, 465, 587, 636, 993, 2049, 2375, 2379, 3306, 3389, 5432,
         5900, 6379, 6443, 9200, 10250, 11211, 27017)  # fmt: skip
_FULLWIDTH = str.maketrans("0123456789", "０１２３４５６７８９")
_CIRCLED = str.maketrans("0123456789", "⓪①②③④⑤⑥⑦⑧⑨")
_ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


class Spelling(Struct, frozen=True):
    url: str
    address: str  # destination for a parser that accepts it


def make_spellings(port: int, own_address: str) -> list[Spelling]:
    """Return all spellings for a canary on this port. `own_address`: an address of this machine that is not
    loopback.
    """
    found = [
        Spelling(url, four) for four in (*IPV4_ADDRESSES, own_address) for url in _ipv4_urls(IPv4Address(four), port)
    ]
    found += [Spelling(url, six) for six in IPV6_ADDRESSES for url in _ipv6_urls(IPv6Address(six), port)]
    found += [Spelling(f"http://{name}:{port}/", "127.0.0.1") for name in HOST_NAMES]
    found += [Spelling(url, "127.0.0.1") for url in SCHEMES]
    found += [Spelling(f"http://public.example:{number}/", "127.0.0.1") for number in PORTS]
    return list({each.url: each for each in found}.values())


def _ipv4_urls(address: IPv4Address, port: int) -> Iterator[str]:
    hosts = [*_inet_aton_hosts(address), *_disguised_hosts(address), *_ipv6_hosts(address)]
    yield from [f"http://{host}:{port}/" for host in hosts]
    yield from _ambiguous_urls(str(address), port)
    yield f"https://{address}:{port}/"
    yield f"HTTP://{address}:{port}"
    yield f"http://{address}:{port}?x"


def _inet_aton_hosts(address: IPv4Address) -> Iterator[str]:
    """Yield the notations that `inet_aton` accepts."""
    number, parts = int(address), [*address.packed]
    yield str(address)
    yield f"{address}."
    yield str(number)
    yield f"{number}."
    yield str(number + 2**32)
    yield f"{number:#x}"
    yield f"{number:#X}"
    yield f"0x{number:016x}"
    yield f"0{number:o}"
    yield f"{parts[0]}.{number & 0xFFFFFF}"
    yield f"{parts[0]}.{parts[1]}.{number & 0xFFFF}"
    yield ".".join(f"{part:#x}" for part in parts)
    yield ".".join(f"0{part:o}" for part in parts)
    yield ".".join(f"{part:03}" for part in parts)
    yield f"{parts[0]:#x}.{parts[1]}.0{parts[2]:o}.{parts[3]}"
    yield f"{parts[0] + 256}.{parts[1]}.{parts[2]}.{parts[3]}"


def _disguised_hosts(address: IPv4Address) -> Iterator[str]:
    """Yield notations with other digits and dots, escapes and blanks."""
    plain = str(address)
    yield plain.translate(_FULLWIDTH)
    yield plain.translate(_CIRCLED)
    yield plain.translate(_ARABIC)
    yield plain.replace(".", "。")
    yield plain.replace(".", "．")
    yield plain.replace(".", "｡")
    yield plain.replace(".", "%2e")
    yield "".join(f"%{ord(char):02x}" for char in plain)
    yield plain[:3] + "\u200b" + plain[3:]
    yield plain[:3] + "\u00ad" + plain[3:]
    yield plain[:3] + "\t" + plain[3:]
    yield f" {plain}"
    yield f"{plain}%00.example.com"
    yield f"{plain}%20"


def _ipv6_hosts(address: IPv4Address) -> Iterator[str]:
    """Yield IPv6 addresses that contain the IPv4 address."""
    number = int(address)
    high, low = number >> 16, number & 0xFFFF
    yield f"[::ffff:{address}]"
    yield f"[::ffff:{high:x}:{low:x}]"
    yield f"[0:0:0:0:0:ffff:{high:04x}:{low:04x}]"
    yield f"[0000:0000:0000:0000:0000:FFFF:{address}]"
    yield f"[::{address}]"
    yield f"[::ffff:0:{address}]"
    yield f"[64:ff9b::{address}]"
    yield f"[64:ff9b:1::{address}]"
    yield f"[2002:{high:x}:{low:x}::1]"
    yield f"[2001:0:102:304:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}]"
    yield f"[2606:4700::5efe:{high:x}:{low:x}]" if number else "[::0.0.0.0]"
    yield f"[{address}]"


def _ambiguous_urls(host: str, port: int) -> Iterator[str]:
    """Yield URLs that two parsers read differently."""
    at = f"{host}:{port}"
    yield f"http://public.example@{at}/"
    yield f"http://public.example:80@{at}/"
    yield f"http://public.example\\@{at}/"
    yield f"http://public.example%23@{at}/"
    yield f"http://public.example%2f@{at}/"
    yield f"http://user:pass@{at}/"
    yield f"http://:@{at}/"
    yield f"http:\\\\{at}\\"
    yield f"http:/\\{at}/"
    yield f"http:///{at}/"
    yield f"http://{at}\\.public.example/"
    yield f"http://{host}\\:{port}/"
    yield f"\thttp://{at}/"
    yield f"ht\ttp://{at}/"


def _ipv6_urls(address: IPv6Address, port: int) -> Iterator[str]:
    exploded = address.exploded
    for host in (
        f"[{address}]",
        f"[{exploded}]",
        f"[{exploded.upper()}]",
        f"[{address}%25lo]",
        f"[{address}%lo]",
        f"[{address}%1]",
        f"[0{exploded[1:]}]",
        str(address),
        f"[{address}].",
        f"user@[{address}]",
        f"[{str(address).translate(_FULLWIDTH)}]",
    ):
        yield f"http://{host}:{port}/"
