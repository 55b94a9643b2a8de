"""Service tiers: which one a request runs in, and whose turn comes first.

`auto`, and saying nothing, mean the operator's default. The tier that ran is what the answer tells.
"""

from collections.abc import Collection

from msgspec import Struct

from antiphon.admission import USUAL
from antiphon.errors import InvalidValue
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response, ServiceTier

# In the queue of a model, and in that of the background; all others have the usual rank.
_RANKS: dict[str | None, int] = {"priority": 0, "fast": 0, "ultrafast": 0, "flex": 2}

RANKS = ("priority", "default", "flex")  # what the ranks are called


class Tiers(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    default: ServiceTier = "default"  # what auto means
    allowed: Collection[ServiceTier] = ()  # beside the default; none: all of them

    def settle(self, request: CreateResponse) -> None:
        """The request names the tier that it runs in, or is refused."""
        asked = request.service_tier
        if asked is None or asked == "auto":
            request.service_tier = self.default
        elif self.allowed and asked != self.default and asked not in self.allowed:
            known = ", ".join(sorted({"auto", self.default, *self.allowed}))
            raise InvalidValue(
                f"Invalid value: '{asked}'. This server's service tiers are: {known}.", param="service_tier"
            )


def rank(settled: CreateResponse | Response) -> int:
    return _RANKS.get(settled.service_tier, USUAL)


def told(asked: str | None, ran: str | None) -> str | None:
    """What chat and completions say of it; nothing, where nobody asked and it is the usual one."""
    return ran if asked is not None or ran != "default" else None
