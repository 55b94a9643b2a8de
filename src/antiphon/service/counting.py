"""How many tokens a prompt has, without asking a model: the number that the usage of the same request would tell.

Everything that a create would refuse is refused here too. Nothing is written, and no place at a model is taken.
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Admission
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.measuring import counted
from antiphon.service.planner import Planner, Settled

AT_ONCE = 16  # counts under way: engines have few ears for this beside their work


class Counted(Struct, frozen=True):
    tokens: int
    ignored: list[str]  # names of fields that change nothing


class Counting:
    def __init__(self, planner: Planner, queue: int) -> None:
        """`queue`: how many may wait for their turn."""
        self._planner = planner
        self._admission = Admission(AT_ONCE, queue)

    async def count(self, tenant: str, decoded: Decoded) -> Counted:
        """How the answer would be delivered and whether it would be kept has no say in it."""
        request = replace(decoded.request, stream=False, background=False, store=False)
        with self._admission.enter(tenant) as ticket:
            await ticket.ready()
            settled = await self._planner.settle(tenant, replace(decoded, request=request))
            return Counted(await _tokens(settled), [*settled.ignored, *_idle(decoded)])


def _idle(decoded: Decoded) -> list[str]:
    """Nobody waits for a place at a model here."""
    return [] if decoded.request.service_tier in (None, "auto", "default") else ["service_tier"]


async def _tokens(settled: Settled) -> int:
    tokens = await counted(settled.prepared, settled.served, settled.able)
    if tokens is None:
        raise UnsupportedParameter(
            "The tokens of this model's prompts cannot be counted: the"
            f" {settled.served.engine.name} engine does not tell.",
            param="model",
        )
    return tokens
