"""context_management: a prompt that has grown beyond its threshold is compacted before the model is called.

The item stands in the response's own output, before whatever is answered, and stands for the request's input too. It is
told when it is made: a summary that fails leaves no trace, and the response goes on with all of its history if that
fits. A client that sends a trigger asks for the item itself: it gets it, or an error, and no answer.
"""

import logging
from typing import Final

from msgspec.structs import replace

from antiphon.agent.turn_policy import Floor
from antiphon.core.deltas import Opened, Ran, Turned
from antiphon.core.dialects.plain_text import Gist
from antiphon.core.history.compaction_plan import part
from antiphon.errors import AntiphonError, MissingParameter
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.items import Compaction, CompactionTrigger
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.prompting.compaction_items import sealed
from antiphon.service.prompting.prepared_request import Settled
from antiphon.service.prompting.token_count import measured, surely_less
from antiphon.service.tool_loop.compaction import Asker, compacted, privately, task_of

log = logging.getLogger(__name__)

_SHARE: Final = 0.75  # of the context, where no threshold is named


class CompactionStep:
    def __init__(self, asker: Asker, keyring: Keyring, settled: Settled, *, triggered: bool) -> None:
        self._asker = asker
        self._keyring = keyring
        self._settled = settled
        self.ends = triggered  # nothing is answered after it
        self.tokens = 0  # of the summary: none of them is the answer's

    async def take(self, floor: Floor) -> None:
        settled = self._settled
        try:
            made = await compacted(self._asker, task_of(settled, not self.ends), self._ask)
        except AntiphonError as error:
            if self.ends:
                raise
            log.warning("a conversation could not be compacted: %s", error.message)
            return
        if made.counts is not None:
            self.tokens = made.counts.output_tokens
            floor.count(made.counts)
        item = await sealed(self._keyring, settled.tenant, made.memory)
        key = floor.key()
        await floor.feed(Opened(key, Compaction(encrypted_content="")), Ran(key, item), Turned(made.counts))

    async def _ask(self, settled: Settled) -> Gist:
        return await privately(self._asker, settled)


async def compaction_step(asker: Asker, keyring: Keyring, settled: Settled) -> CompactionStep | None:
    """None if nothing has to be compacted."""
    request = settled.decoded.request
    if is_triggered(request):
        return CompactionStep(asker, keyring, settled, triggered=True)
    if not request.context_management or not await _is_over(settled, _threshold(request, settled)):
        return None
    if part(settled.prepared.history.items, answering=True).is_idle:
        return None  # nothing of it is old
    return CompactionStep(asker, keyring, settled, triggered=False)


def is_triggered(request: CreateResponse) -> bool:
    return bool(request.input) and type(request.input[-1]) is CompactionTrigger


def roomy(decoded: Decoded) -> Decoded:
    """What is to be compacted may be longer than the context at first."""
    request = decoded.request
    given = request.input
    if not request.context_management and not (given and type(given[-1]) is CompactionTrigger):
        return decoded
    return replace(decoded, request=replace(request, truncation="auto"))


async def _is_over(settled: Settled, threshold: int) -> bool:
    prepared = settled.prepared
    if prepared.shortened:
        return True
    if surely_less(prepared.work.prompt, threshold):
        return False
    return await measured(prepared, settled.served, settled.able) > threshold


def _threshold(request: CreateResponse, settled: Settled) -> int:
    named = [entry.compact_threshold for entry in request.context_management or ()]
    known = [threshold for threshold in named if threshold is not None]
    if known:
        return min(known)
    if settled.able.context is None:
        raise MissingParameter(
            "This model's context is not known: say from how many tokens on it is to be compacted.",
            param="context_management[0].compact_threshold",
        )
    return int(settled.able.context * _SHARE)
