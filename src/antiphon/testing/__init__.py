"""Tests for packages of others: a server with the fake engine, and the contracts of plug-ins.

`server` needs nothing else; `contracts` and `fixtures` need the extra `testing`, which installs pytest.
"""

import sys

from antiphon.testing.server import ServerProcess, server

if "pytest" in sys.modules:  # failed assertions of the contracts show their values, as those of tests do
    suites = ("call_format_tests", "engine_tests", "search_tests", "store_tests", "tool_tests")
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{suite}" for suite in suites))

__all__ = ["ServerProcess", "server"]
