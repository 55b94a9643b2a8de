"""Entries of lists of domains, and which names they cover."""

import pytest

from antiphon.egress.domains import DomainList, parse_domain


@pytest.mark.parametrize(
    ("entry", "parsed"),
    [("PyPI.org.", "pypi.org"), ("*.Example.com", "*.example.com"), ("bücher.example", "xn--bcher-kva.example")],
)
def test_an_entry_is_a_name_in_its_usual_spelling(entry: str, parsed: str) -> None:
    assert parse_domain(entry) == parsed


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "a.*.b", "**.b", "127.0.0.1", "0x7f.1", "*.1", "[::1]", "a:443", "a/b", "a b", "a@b", ".a"]
)
def test_what_is_no_name_is_rejected(entry: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor"):
        parse_domain(entry)


def test_a_domain_covers_names_below_it_but_not_itself() -> None:
    domains = DomainList(["a.example", "*.b.example"])
    covered = ["a.example", "x.b.example", "x.y.b.example", "*.b.example", "*.y.b.example"]
    assert all(map(domains.covers, covered))
    assert not any(map(domains.covers, ["b.example", "x.a.example", "xb.example", "*.example", "a.example.org", ""]))
    assert DomainList(["*"]).covers("any.example")
    assert not DomainList([]).covers("a.example")
