"""Several engines as one: who gets a work, and what becomes of it when an engine fails."""

from antiphon.engines.pool.member import Seat
from antiphon.engines.pool.pool import Pool

__all__ = ["Pool", "Seat"]
