"""What a server that died left behind: it is run again if nobody can have heard any of it, gone on with if it stopped
between two turns, and else it gets an end.

An end closes what was streamed, with the numbers that follow: who goes on reading sees one stream.
"""

from antiphon.agent.recovery import remains
from antiphon.core.emitter.fold import Ending
from antiphon.core.replay.replay import Replay, reopened
from antiphon.errors import AntiphonError, EngineFailed, ServerRestarted
from antiphon.service.persistence.live_writer import Left
from antiphon.service.persistence.response_writer import Kept
from antiphon.service.persistence.stored_request import response_of
from antiphon.stores.base import StoredResponse


def reason_to_end(row: StoredResponse, left: Left, attempts: int, now: float) -> AntiphonError | None:
    """None: it is to be run again."""
    if row.deadline is not None and now >= row.deadline:
        return EngineFailed("The response took longer than this server allows and was ended.")
    if not row.background or (left.spoken and remains(left.entries) is None):
        return died()
    if row.attempts > attempts:
        return ServerRestarted(f"{attempts} servers died while they worked on this response; it was given up.")
    return None


def died() -> ServerRestarted:
    return ServerRestarted("The server that worked on this response died.")


async def end_remains(kept: Kept, row: StoredResponse, left: Left, ending: Ending, at: float) -> bytes:
    """The JSON of the Response. Raises ServerRestarted if others were faster, and Unavailable."""
    replay = Replay(reopened(response_of(row.response)), obfuscates=False)
    replay.open()
    replay.feed(left.entries)
    emitter = replay.emitter
    emitter.finish(ending, None, int(at))
    return await kept.end(emitter.response, emitter.log or [])
