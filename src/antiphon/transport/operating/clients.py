"""/v1/antiphon/clients: the files of clients for this server, and which programs have sent requests. Extensions."""

import re
import shlex
from time import time

from msgspec import Struct

from antiphon.clients.base import ServerConnection
from antiphon.clients.catalog import CLIENTS, find_client, list_text_models
from antiphon.clients.text_files import render_file
from antiphon.errors import InvalidValue, Unavailable
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.operations.clients import (
    ClientList,
    ClientQuery,
    ClientSummary,
    ConfiguredClient,
    ConfiguredFile,
    UserAgentList,
    UserAgentQuery,
)
from antiphon.service.operations.model_catalog import ModelCatalog
from antiphon.service.operations.user_agents import UserAgentLog
from antiphon.transport.http.channel import CLOSE
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import JSON, Request
from antiphon.transport.middleware.routing import READ_ERRORS, Route

_CLIENTS = "/v1/antiphon/clients"
_URL = re.compile(r"https?://[\w.:\[\]-]{1,255}(/[\w./~-]{0,255})?", re.ASCII)
_YOUR_KEY = "YOUR_KEY"


class ClientsEndpoint(Struct, frozen=True):
    catalog: ModelCatalog
    user_agents: UserAgentLog

    @Route("GET", _CLIENTS, gives=ClientList)
    async def list_clients(self, request: Request) -> None:
        """List the clients that can be configured. An extension."""
        clients = [ClientSummary(name=name, title=setup.title) for name, setup in CLIENTS.items()]
        await request.reply(200, encode(ClientList(data=clients)))

    @Route("GET", f"{_CLIENTS}/{{client}}", query=ClientQuery, gives=ConfiguredClient, errors=READ_ERRORS)
    async def configure(self, request: Request) -> None:
        """Get the files of a client for this server. With its address, model and context window, and a placeholder
        where a key is needed. `antiphon connect` writes the same files. An extension.
        """
        name, query = request.params["client"], read_query(request, ClientQuery)
        setup, connection = find_client(name), await self._connect(request, query)
        files = setup.list_files(connection)
        client = ConfiguredClient(
            name=name,
            title=setup.title,
            page=setup.page,
            model=connection.model,
            command=shlex.join(["antiphon", "connect", name, "--url", connection.url, "--model", connection.model]),
            files=[ConfiguredFile(path=file.path, text=render_file(file, connection)) for file in files],
            hint=setup.hint,
        )
        await request.reply(200, encode(client))

    @Route("GET", "/v1/antiphon/user_agents", query=UserAgentQuery, gives=UserAgentList, errors=READ_ERRORS)
    async def list_user_agents(self, request: Request) -> None:
        """List the programs that have sent requests. Those of the tenant, by `User-Agent`, with the time and status of
        the last request, the latest first. Counted by the process that answers; the connection is closed after the
        reply, so that another request may reach another one. An extension.
        """
        query, states = read_query(request, UserAgentQuery), self.user_agents.list_states(request.tenant)
        if query.client is not None:
            setup = find_client(query.client)
            states = [state for state in states if setup.sends(state.user_agent)]
        await request.reply(200, encode(UserAgentList(at=time(), data=states)), (JSON, CLOSE))

    async def _connect(self, request: Request, query: ClientQuery) -> ServerConnection:
        url = query.url or f"http://{request.headers.get(b'host', b'').decode('latin-1')}"
        if not _URL.fullmatch(url):
            raise InvalidValue("'url' is not an address such as http://127.0.0.1:8000.", param="url")
        models = list_text_models(await self.catalog.list_models(), query.model)
        if query.model is not None and (not models or models[0].id != query.model):
            models = [await self.catalog.find(query.model), *models]
        if not models:
            raise Unavailable("No model generates text at present.", retry_after=1.0)
        return ServerConnection(url=url.rstrip("/"), models=models, key=_YOUR_KEY if request.principal.key else "")
