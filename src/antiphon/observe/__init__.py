"""Observability: metrics at /metrics, log lines and traces. None of them contains secrets."""

from antiphon.observe.logs import set_up_logging
from antiphon.observe.metrics import Metrics

__all__ = ["Metrics", "set_up_logging"]
