"""The egress policy allows public addresses on HTTP ports and the operator's entries, and nothing else."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.egress import EgressPolicy
from antiphon.egress.policy import describe_special, is_local_address, parse_address
from antiphon.egress.urls import parse_url
from antiphon.errors import StartupError

FORBIDDEN = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
    "127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255",
    "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1",
    "2001:0:7f00:1::", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:a9fe:a9fe::",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1", "4000::1",
    "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:10.0.0.1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "192.0.1.1",
          "223.255.255.255", "168.63.129.17", "2606:4700::1111", "2a00:1450:4001::1", "64:ff9b::808:808",
          "2606:4700::5efe:808:808"]  # fmt: skip


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_special_address_has_a_description(text: str) -> None:
    assert describe_special(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_has_no_description(text: str) -> None:
    assert describe_special(ip_address(text)) is None


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_an_address_that_python_does_not_call_global_is_never_public(address: object) -> None:
    parsed = ip_address(str(address))
    if not parsed.is_global or parsed.is_multicast:
        translated = parsed.version == 6 and parsed in ip_network("64:ff9b::/96")
        assert describe_special(parsed) or translated


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1%lo", "fe80::1%eth0", "1.2.3", "127.1", "0x7f000001", "::1%0"])
def test_invalid_results_of_a_resolver_are_not_addresses(text: str) -> None:
    assert parse_address(text) is None


def test_local_addresses_are_detected_without_network_traffic() -> None:
    assert is_local_address(ip_address("127.0.0.1"))
    assert is_local_address(ip_address("127.8.8.8"))
    assert not is_local_address(ip_address("192.0.2.1"))


def test_a_public_address_of_this_machine_must_be_allowed_explicitly() -> None:
    url, here = parse_url("https://here.example/", ""), ip_address("1.1.1.1")
    assert "this machine" in (
        EgressPolicy((), is_local=lambda address: address == here).find_objection(url, here) or ""
    )
    assert EgressPolicy(("1.1.1.1",), is_local=lambda address: True).find_objection(url, here) is None


def get_objection(url: str, address: str, *opened: str) -> str | None:
    return EgressPolicy(opened).find_objection(parse_url(url, ""), ip_address(address))


@pytest.mark.parametrize("address", FORBIDDEN)
def test_no_name_makes_an_address_public(address: str) -> None:
    assert get_objection("https://good.example/", address)
    assert "private" in (get_objection("http://good.example/", "10.0.0.1") or "")


@pytest.mark.parametrize(
    "port", [1, 21, 22, 23, 25, 110, 139, 445, 587, 993, 1023, 2375, 3306, 5432, 6379, 9200, 11211, 27017]
)
def test_ports_of_other_services_must_be_allowed_explicitly(port: int) -> None:
    assert get_objection(f"http://good.example:{port}/", "1.1.1.1") == f"Port {port} is not one for HTTP"
    assert get_objection(f"http://good.example:{port}/", "1.1.1.1", f"good.example:{port}") is None


@pytest.mark.parametrize("port", [80, 443, 1024, 3000, 5000, 8000, 8080, 8443, 9000, 65535])
def test_http_ports_are_allowed(port: int) -> None:
    assert get_objection(f"https://good.example:{port}/", "1.1.1.1") is None


@pytest.mark.parametrize(
    ("opened", "url", "address", "is_allowed"),
    [
        ("files.corp", "http://files.corp/", "10.0.0.1", True),
        ("Files.Corp.", "http://files.corp:9000/", "10.0.0.1", True),
        ("files.corp", "http://other.corp/", "10.0.0.1", False),
        ("files.corp", "http://x.files.corp/", "10.0.0.1", False),
        ("files.corp:9000", "http://files.corp:9000/", "10.0.0.1", True),
        ("files.corp:9000", "http://files.corp/", "10.0.0.1", False),
        ("10.0.0.0/8", "http://files.corp/", "10.9.9.9", True),
        ("10.0.0.0/8", "http://files.corp/", "172.16.0.1", False),
        ("127.0.0.1", "http://127.0.0.1:8080/", "127.0.0.1", True),
        ("127.0.0.1", "http://127.0.0.2/", "127.0.0.2", False),
        ("127.0.0.1:8080", "http://127.0.0.1:8081/", "127.0.0.1", False),
        ("127.0.0.1:8080", "http://rebound.example:8080/", "127.0.0.1", True),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1", False),
        ("::1", "http://[::1]/", "::1", True),
        ("[::1]:81", "http://[::1]:81/", "::1", True),
        ("[::1]:81", "http://[::1]:82/", "::1", False),
        ("fd00::/8", "http://six.corp/", "fd00::1", True),
        ("localhost", "http://localhost/", "127.0.0.1", True),
        ("localhost", "http://127.0.0.1/", "127.0.0.1", False),
    ],
)
def test_an_entry_allows_only_what_it_names(opened: str, url: str, address: str, is_allowed: bool) -> None:
    assert (get_objection(url, address, opened) is None) is is_allowed


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "http://a/",
        "a b",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "a:b",
        "a:0",
        "a:99999",
        "[::1",
        "[::1]x",
        "*",
        "1.2.3",
        "a/b",
        "user@a",
    ],
)
def test_an_invalid_entry_is_a_startup_error(entry: str) -> None:
    with pytest.raises(StartupError, match="--allow-egress"):
        EgressPolicy([entry])
