"""What operators see: numbers at /metrics, lines in the log. Nothing secret is in either."""

from antiphon.observe.logs import set_up_logging
from antiphon.observe.metrics import Metrics

__all__ = ["Metrics", "set_up_logging"]
