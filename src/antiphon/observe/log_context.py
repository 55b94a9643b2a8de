"""What is being worked on, by context: log lines say it, and the access log. Whatever is started for it has the same.

It is filled in as it becomes known; nothing in it was written by a client, but for its own names of its users.
"""

from contextvars import ContextVar

from msgspec import Struct


class About(Struct):
    request: str = ""
    response: str = ""
    connection: str = ""  # a WebSocket's
    trace: str = ""  # the id of it, in hexadecimal digits
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    users: dict[str, str] = {}  # what a client calls those it asks for, by the names of the fields

    def ids(self) -> dict[str, str]:
        named = {
            "request_id": self.request,
            "response_id": self.response,
            "connection_id": self.connection,
            "trace_id": self.trace,
        }
        return {name: value for name, value in named.items() if value}


ABOUT: ContextVar[About | None] = ContextVar("about", default=None)


def note_response(response_id: str) -> None:
    """It is this response that is being worked on."""
    about = ABOUT.get()
    if about is None:
        ABOUT.set(About(response=response_id))
    else:
        about.response = response_id
