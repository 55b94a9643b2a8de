"""POST /responses/compact without a transport: a conversation comes back as the user's messages and one compaction.

Nothing is kept. The messages are shown as the compaction has them: whole, or by their first characters.
"""

from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.dialects.plain_text import Gist, GistEmitter
from antiphon.core.history.compaction import user_message
from antiphon.core.prompt import Counts
from antiphon.core.usage import usage
from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.protocol.bodies.compact import CompactedResponse
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.planning.planner import Planner
from antiphon.service.prompting.compaction_items import sealed
from antiphon.service.prompting.prepared_request import Settled
from antiphon.service.runs.completion_runs import Exchanges
from antiphon.service.tool_loop.compaction import compacted, heard, task_of


class Given(Struct, frozen=True):
    compaction: CompactedResponse
    ignored: list[str]  # names of fields that change nothing


class Compactions:
    def __init__(self, planner: Planner, exchanges: Exchanges, keyring: Keyring) -> None:
        self._planner = planner
        self._exchanges = exchanges
        self._keyring = keyring

    async def compact(self, tenant: str, decoded: Decoded) -> Given:
        """What is longer than the model's context is compacted too."""
        request = replace(decoded.request, truncation="auto")
        settled = await self._planner.settle(tenant, replace(decoded, request=request))
        if not settled.prepared.history.items:
            raise InvalidValue("There is nothing to compact.", param="input")
        made = await compacted(self._planner, task_of(settled, answering=False), self._ask)
        messages = [replace(user_message(text), id=new_id("msg"), status="completed") for text in made.memory.users]
        compaction = await sealed(self._keyring, tenant, made.memory)
        answer = CompactedResponse(
            id=new_id("resp"),
            created_at=int(time()),
            output=[*messages, replace(compaction, id=new_id("cmp"))],
            usage=usage([made.counts or Counts()]),
        )
        return Given(answer, settled.ignored)

    async def _ask(self, settled: Settled) -> Gist:
        return await heard(self._exchanges.open([settled], GistEmitter()))
