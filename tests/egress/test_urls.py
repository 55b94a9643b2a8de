"""One parser for every URL: the URLs that it accepts have exactly one meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.egress.urls import MAX_URL_LENGTH, Url, parse_redirect, parse_url
from antiphon.errors import UrlRefused


@pytest.mark.parametrize(
    ("text", "rendered", "host", "port"),
    [
        ("http://example.com", "http://example.com/", "example.com", 80),
        ("HTTPS://Example.COM:443/a?b#c", "https://example.com/a?b", "example.com", 443),
        ("https://example.com:8443?q=1", "https://example.com:8443/?q=1", "example.com", 8443),
        ("http://example.com./x", "http://example.com/x", "example.com", 80),
        ("http://a_b.example/", "http://a_b.example/", "a_b.example", 80),
        ("http://192.0.2.1/", "http://192.0.2.1/", "192.0.2.1", 80),
        ("http://[2001:DB8:0::1]:81/", "http://[2001:db8::1]:81/", "2001:db8::1", 81),
        (
            "https://bücher.example/ä?ö=ü",
            "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC",
            "xn--bcher-kva.example",
            443,
        ),
        ("http://日本語。jp/", "http://xn--wgv71a119e.jp/", "xn--wgv71a119e.jp", 80),
        ("http://example.com/%41%2f?x=%00", "http://example.com/%41%2f?x=%00", "example.com", 80),
        ('http://example.com/{a}|"b"', "http://example.com/%7Ba%7D%7C%22b%22", "example.com", 80),
        ("http://example.com/a@b:c", "http://example.com/a@b:c", "example.com", 80),
    ],
)
def test_a_plain_url_is_parsed(text: str, rendered: str, host: str, port: int) -> None:
    url = parse_url(text, "field")
    assert (str(url), url.host, url.port) == (rendered, host, port)


def test_a_url_and_its_name_are_accepted_up_to_their_limits() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert parse_url(f"http://{name}./", "").host == name
    assert len(str(parse_url("http://a/" + "b" * (MAX_URL_LENGTH - 9), ""))) == MAX_URL_LENGTH
    for text in (f"http://{name}c/", f"http://{name}c./"):
        with pytest.raises(UrlRefused):
            parse_url(text, "")


AMBIGUOUS = [
    "", "example.com", "//example.com", "http:/example.com", "http:example.com", "http:///example.com", "http://",
    "http://:80/", "ftp://example.com/", "file:///etc/passwd", "/etc/passwd", "gopher://127.0.0.1:6379/_INFO",
    "unix:///run/docker.sock", "javascript:alert(1)", "jar:http://127.0.0.1!/", "dict://127.0.0.1:11211/stats",
    "http://user@example.com/", "http://user:pass@example.com/", "http://example.com@127.0.0.1/", "http://@127.0.0.1/",
    "http://good.com\\@127.0.0.1/x", "http://good.com\\.evil/", "http:\\\\127.0.0.1\\", "http://127.0.0.1\\/",
    "http://127.0.0.1%2f@good.com/", "http://%31%32%37.0.0.1/", "http://127.0.0.1%00.good.com/", "http://local%68ost/",
    " http://example.com/", "http://example.com/ ", "http://exa mple.com/", "http://example.com/a b", "ht\ntp://a.b/",
    "http://exam\tple.com/", "http://example.com\r\nX: y/", "http://example.com/\u2028", "http://ex\u200bample.com/",
    "http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/",
    "http://127.0.1/", "http://0177.0.0.1/", "http://127.0.0.01/", "http://00000127.0.0.1/", "http://1.2.3.4.5/",
    "http://256.1.1.1/", "http://0/", "http://0x/", "http://1/", "http://example.123/", "http://example.0x1f/",
    "http://１２７.０.０.１/", "http://127。0。0。1/", "http://①②⑦.⓪.⓪.①/", "http://١٢٧.0.0.1/", "http://0ｘ7f.1/",
    "http://faß.de/", "http://a\u200db.example/",
    "http://[::1", "http://::1/", "http://[::1]x/", "http://[::1%25lo]/", "http://[::1%lo]/", "http://[fe80::1%eth0]/",
    "http://[127.0.0.1]/", "http://[::g]/", "http://[]/", "http://[v1.a]/", "http://[::ffff:127.1]/",
    "http://example.com:/", "http://example.com:0/", "http://example.com:65536/", "http://example.com:080/",
    "http://example.com:+80/", "http://example.com:８０/", "http://example.com:80:80/", "http://example.com:-1/",
    "http://a..b/", "http://.a/", "http://-a.b/", "http://a-.b/", "http://a.b../", "http://" + "a" * 64 + ".b/",
    "http://" + "a." * 130 + "b/", "http://a/" + "b" * MAX_URL_LENGTH, "http://ex*mple.com/", "http://exa$mple.com/",
    "http://example.com;/", "http://example.com,evil.com/", "http://℀.com/", "http://a＠b.com/", "http://a／b.com/",
    "http://\ud800.com/", "http://example.com/\ud800", "http://ａ％00.com/",
]  # fmt: skip


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_url_that_others_may_parse_differently_is_rejected(text: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        parse_url(text, "input[0].content[0].image_url")
    assert refused.value.param == "input[0].content[0].image_url"
    assert refused.value.status == 400


@given(st.text(max_size=60), st.text(max_size=20))
def test_any_text_is_a_plain_url_or_rejected(host: str, path: str) -> None:
    for text in (host, f"http://{host}/{path}", f"https://{host}:{path}"):
        try:
            url = parse_url(text, "")
        except UrlRefused:
            continue
        assert str(url).isascii()
        assert parse_url(str(url), "") == url
        assert not {"\r", "\n", " ", "\\", "@"} & {*url.authority}


BASE = parse_url("https://example.com/a/b?c", "")


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/x", "https://example.com/x"),
        ("x", "https://example.com/a/x"),
        ("?y", "https://example.com/a/b?y"),
        ("//other.example/z", "https://other.example/z"),
        ("http://127.0.0.1:6379/", "http://127.0.0.1:6379/"),
        ("../../..", "https://example.com/"),
        ("/a:b", "https://example.com/a:b"),
        ("?a:b", "https://example.com/a/b?a:b"),
    ],
)
def test_a_redirect_is_resolved_against_its_base_url(location: str, target: str) -> None:
    assert str(parse_redirect(BASE, location, "")) == target


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "\\\\127.0.0.1\\x",
        "//user@127.0.0.1/",
        "http://0x7f.1/",
        "/\r\nX: y",
        "/a\tb",
        " /a",
        "a\\b",
        "//[::1",
        "gopher://a/",
        "http:///127.0.0.1/",
        "https:127.0.0.1",
        "http:/127.0.0.1/",
        "https:/x",
        "///127.0.0.1/",
        "x:y",
    ],
)
def test_a_redirect_is_parsed_as_strictly_as_a_url(location: str) -> None:
    with pytest.raises(UrlRefused):
        parse_redirect(BASE, location, "")


def test_the_origin_is_scheme_host_and_port() -> None:
    assert Url("http", "a", 80, "/").origin == parse_url("http://A:80/b", "").origin
    assert parse_url("http://a/", "").origin != parse_url("https://a/", "").origin
