"""Which of a client's users a request was made for, in the log: an operator has to find them who asks about a request.

In the log alone: as labels of metrics they would be without number.
"""

import logging

from antiphon.observe.log_context import ABOUT
from antiphon.protocol.types.request import CreateResponse

log = logging.getLogger(__name__)

_LONGEST = 128  # characters; OpenAI's are at most 64


def note_user(request_id: str, asked: CreateResponse) -> None:
    if asked.safety_identifier or asked.user:
        given = {"safety_identifier": asked.safety_identifier, "user": asked.user}
        named = {name: _plain(value) for name, value in given.items() if value}
        log.info("A request was accepted.", extra={"request_id": request_id, **named})
        if (about := ABOUT.get()) is not None:
            about.users = named


def _plain(value: str) -> str:
    """Whatever is in it, a terminal only shows it."""
    return "".join([letter if letter.isprintable() else "?" for letter in value[:_LONGEST]])
