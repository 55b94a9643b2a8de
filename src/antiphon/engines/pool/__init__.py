"""Several engines as one: load balancing, failover and changing membership."""

from antiphon.engines.pool.members import MemberSpec
from antiphon.engines.pool.pool import EnginePool

__all__ = ["EnginePool", "MemberSpec"]
