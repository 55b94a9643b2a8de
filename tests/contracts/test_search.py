"""Runs the contract suite of search providers against the registered ones.

Covers `testing/search_tests.py`.
"""

from antiphon.testing.contracts import SearchContract
from antiphon.tools.web_search.providers import PROVIDERS


class TestSearXng(SearchContract):
    url = "searxng+http://{address}"
    reply = b'{"results": [{"url": "https://a.example/", "title": "A", "content": "about a"}]}'


class TestJsonApi(SearchContract):
    url = "json+http://{address}/find?q={query}"
    reply = b'{"results": [{"url": "https://a.example/", "title": "A", "content": "about a"}]}'


def test_every_provider_is_tested_here() -> None:
    assert {suite.url.partition("+")[0] for suite in (TestSearXng, TestJsonApi)} == PROVIDERS.keys()
