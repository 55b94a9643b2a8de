"""Clients, their files for this server, and the programs whose requests have arrived. Extensions, made for a page."""

from typing import Literal

from msgspec import Struct


class ClientSummary(Struct, frozen=True, kw_only=True):
    name: str
    title: str


class ClientList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ClientSummary]


class ClientQuery(Struct, frozen=True, kw_only=True):
    model: str | None = None  # default: the first one
    url: str | None = None  # of the server, as the client reaches it; default: as this request does


class ConfiguredFile(Struct, frozen=True, kw_only=True):
    path: str
    text: str


class ConfiguredClient(Struct, frozen=True, kw_only=True):
    """A client with the files of a new configuration. Keys are never among them."""

    name: str
    title: str
    page: str  # of the documentation
    model: str
    command: str  # that writes the files, quoted for a shell
    files: list[ConfiguredFile]
    hint: str


class UserAgentQuery(Struct, frozen=True, kw_only=True):
    client: str | None = None  # only those by which its requests are recognized


class UserAgentState(Struct, kw_only=True):
    """Requests with one `User-Agent`; `route` and `status` are those of the last one, 0 while it runs."""

    user_agent: str
    requests: int = 0
    last_at: float = 0.0
    route: str = ""
    status: int = 0


class UserAgentList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    at: float  # the time of the server
    data: list[UserAgentState]
