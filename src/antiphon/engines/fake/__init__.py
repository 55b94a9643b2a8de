"""The fake engine: deterministic answers without a model, for tests, demos and load; see `engine.py`."""

from antiphon.engines.fake.engine import FakeEngine, FakeSettings

__all__ = ["FakeEngine", "FakeSettings"]
