"""Fixture of the agent tests: a fake engine whose replies each test scripts."""

import pytest

from antiphon.engines.fake import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()
