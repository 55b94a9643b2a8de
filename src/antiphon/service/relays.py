"""What engines do that is passed on as it comes: scores, rankings, classes, pooled vectors, and what audio says.

Only the model is ours to look at: whoever serves it gets the rest, in its own name for the model. What it cost in
tokens stays as it was guessed.
"""

from antiphon.engines.base import Deed, Relayed
from antiphon.protocol.forms import Form
from antiphon.protocol.ranking import BYTES, JSON, Ranking, answered, described
from antiphon.service.doing import Doing
from antiphon.service.quotas import spend


class Relays:
    def __init__(self, doing: Doing) -> None:
        self._doing = doing

    async def json(self, tenant: str, deed: Deed, asked: Ranking) -> Relayed:
        doer = await self._doing.find(asked.model, deed)
        served = doer.served
        async with self._doing.place(doer, tenant):
            answer = await served.engine.relay(served.model, deed, asked.saying(served.model))
        spend(None)
        if _kind(answer) != BYTES:
            return Relayed(answered(answer.body, served.name))
        return Relayed(answer.body, BYTES, answer.metadata and described(answer.metadata, served.name))

    async def form(self, tenant: str, deed: Deed, asked: Form, media_type: str) -> Relayed:
        doer = await self._doing.find(asked.value, deed)
        served = doer.served
        async with self._doing.place(doer, tenant):
            answer = await served.engine.relay(served.model, deed, asked.saying(served.model), media_type)
        spend(None)
        return Relayed(answered(answer.body, served.name)) if _kind(answer) == JSON else answer


def _kind(answer: Relayed) -> str:
    return answer.media_type.partition(";")[0].strip().lower()
