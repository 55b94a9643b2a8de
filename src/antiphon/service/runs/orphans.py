"""Responses of a server that died: run again if no event was emitted, resumed between two turns, otherwise ended.

The end closes what was streamed and continues its sequence numbers, so a reader sees one stream.
"""

from msgspec.structs import replace

from antiphon.agent.recovery import read_checkpoint
from antiphon.agent.run import MultiTurn
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, reset_response
from antiphon.errors import AntiphonError, EngineFailed, ServerRestarted
from antiphon.service.persistence.live_writer import PriorLog
from antiphon.service.persistence.owned_row import OwnedRow
from antiphon.service.persistence.stored_request import decode_response
from antiphon.service.planning.planner import PlannedResponse
from antiphon.stores.base import StoredResponse


def find_end_reason(row: StoredResponse, previous: PriorLog, attempts: int, now: float) -> AntiphonError | None:
    """Return the error to end the response with, or None if it is to be run again."""
    if row.deadline is not None and now >= row.deadline:
        return EngineFailed("The response took longer than this server allows and was ended.")
    if not row.background or (previous.has_output and read_checkpoint(previous.entries) is None):
        return _server_died()
    if row.attempts > attempts:
        return ServerRestarted(f"{attempts} servers stopped unexpectedly while generating this response.")
    return None


def continue_from(planned: PlannedResponse, previous: PriorLog) -> PlannedResponse:
    """Continue where the former owner stopped between two turns, or start anew if it had emitted nothing.

    Raises ServerRestarted if it cannot be continued; the model slot is released then.
    """
    if not previous.has_output:
        return planned
    checkpoint = read_checkpoint(previous.entries)
    if checkpoint is None or not isinstance(planned.multi_turn, MultiTurn):
        planned.leave()
        raise _server_died()
    return replace(
        planned, multi_turn=replace(planned.multi_turn, checkpoint=checkpoint), recovered_entries=previous.entries
    )


def _server_died() -> ServerRestarted:
    """Return the error of a response whose server died."""
    return ServerRestarted("The server stopped unexpectedly while it was generating this response.")


async def end_orphan(
    owned_row: OwnedRow, row: StoredResponse, previous: PriorLog, ending: ResponseEnding, at: float
) -> bytes:
    """End the response and return its JSON. Raises ServerRestarted if another process was faster, and Unavailable."""
    replay = Replay(reset_response(decode_response(row.response)), include_obfuscation=False)
    replay.open()
    replay.feed(previous.entries)
    emitter = replay.emitter
    emitter.finish(ending, None, int(at))
    return await owned_row.end(emitter.response, emitter.log or [])
