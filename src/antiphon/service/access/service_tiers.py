"""Service tiers: the tier of a request and its rank in the queues.

`auto` and an absent tier select the operator's default. The response reports the actual tier.
"""

from collections.abc import Collection

from msgspec import Struct

from antiphon.admission import DEFAULT_RANK
from antiphon.errors import InvalidValue
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response, ServiceTier

# Rank in the queue of a model and in the background queue; all other tiers have the default rank.
_RANKS: dict[str | None, int] = {"priority": 0, "fast": 0, "ultrafast": 0, "flex": 2}

RANK_NAMES = ("priority", "default", "flex")  # names of the ranks


class ServiceTiers(Struct, frozen=True, kw_only=True):
    """Operator settings for service tiers."""

    default: ServiceTier = "default"  # used for auto
    allowed: Collection[ServiceTier] = ()  # besides the default; empty: all tiers

    def resolve(self, request: CreateResponse) -> None:
        """Set the actual tier of the request. Raises InvalidValue if the requested one is not allowed."""
        tier = request.service_tier
        if tier is None or tier == "auto":
            request.service_tier = self.default
        elif self.allowed and tier != self.default and tier not in self.allowed:
            available = ", ".join(sorted({"auto", self.default, *self.allowed}))
            raise InvalidValue(
                f"Invalid value: '{tier}'. The service tiers of this server are: {available}.", param="service_tier"
            )


def get_rank(tiered: CreateResponse | Response) -> int:
    return _RANKS.get(tiered.service_tier, DEFAULT_RANK)


def tier_to_report(requested: str | None, actual: str | None) -> str | None:
    """Return the tier that chat and completions report; None if none was requested and the default one was used."""
    return actual if requested is not None or actual != "default" else None
