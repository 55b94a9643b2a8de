"""POST /responses/compact, independent of the transport: returns the user messages and one compaction item.

Nothing is stored. The messages are returned as the compaction holds them: complete or truncated.
"""

from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import CompletionRun
from antiphon.core.dialects.dialect import PlainTextEmitter
from antiphon.core.history.compaction import user_message
from antiphon.core.prompt import TokenCounts
from antiphon.core.usage import usage_from_counts
from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.protocol.bodies.compact import CompactedResponse
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.completions import Completions
from antiphon.service.keyring import Keyring
from antiphon.service.planning.planner import Planner
from antiphon.service.prompting.prepared_request import PreparedRequest
from antiphon.service.tool_loop.compaction import compact


class Compactions(Struct, frozen=True, eq=False):
    _planner: Planner
    _completions: Completions
    _keyring: Keyring

    async def compact(self, tenant: str, decoded: DecodedRequest) -> tuple[CompactedResponse, list[str]]:
        """Compact the input; it may exceed the model's context (`truncation` is forced to `auto`).

        Also returns the names of accepted fields that have no effect.
        """
        request = replace(decoded.request, truncation="auto")
        prepared_request = await self._planner.plan(tenant, replace(decoded, request=request))
        if not prepared_request.prepared.history.items:
            raise InvalidValue("There is nothing to compact.", param="input")
        memory, counts = await compact(self._planner, prepared_request, self._open_run, answering=False)
        messages = [replace(user_message(text), id=new_id("msg"), status="completed") for text in memory.users]
        compaction = await self._keyring.encrypt_memory(tenant, memory)
        response = CompactedResponse(
            id=new_id("resp"),
            created_at=int(time()),
            output=[*messages, replace(compaction, id=new_id("cmp"))],
            usage=usage_from_counts([counts or TokenCounts()]),
        )
        return response, prepared_request.ignored

    def _open_run(self, prepared_request: PreparedRequest) -> CompletionRun:
        return self._completions.open([prepared_request], PlainTextEmitter())[0]
