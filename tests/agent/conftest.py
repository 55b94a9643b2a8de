"""An engine that speaks as it is told, for every test here."""

import pytest

from antiphon.engines.fake import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()
