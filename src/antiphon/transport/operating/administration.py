"""/v1/antiphon/…: what operators manage, with keys that have the scope admin. Extensions."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.keys import decode_key
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.operations.keys import (
    ApiKeyObject,
    CreatedApiKey,
    CreateKey,
    KeyList,
    KeyQuery,
    UsageList,
    UsageQuery,
)
from antiphon.protocol.types.operations.server import ServerStatus
from antiphon.service.access.api_keys import ADMIN
from antiphon.service.operations.key_administration import KeyAdministration
from antiphon.service.operations.server_status import ServerMonitor
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_KEYS = "/v1/antiphon/keys"


class AdministrationEndpoint(Struct, frozen=True):
    keys: KeyAdministration
    monitor: ServerMonitor
    limits: Limits

    @Route("POST", _KEYS, takes=CreateKey, gives=CreatedApiKey, needs=ADMIN, errors=WRITE_ERRORS)
    async def create_key(self, request: Request) -> None:
        """Create an API key. `key` of the reply is the secret, which is never shown again. An extension."""
        body, request.ignored = await read_json(request, decode_key, self.limits)
        await request.reply(200, encode(await self.keys.create(request.principal, body)))

    @Route("GET", _KEYS, query=KeyQuery, gives=KeyList, needs=ADMIN, errors=READ_ERRORS)
    async def list_keys(self, request: Request) -> None:
        """List API keys. Those of the store, of all tenants or of one, newest first, also revoked and expired ones, and
        those of the settings; never their secrets. An extension.
        """
        await request.reply(200, encode(await self.keys.list_keys(read_query(request, KeyQuery))))

    @Route("POST", f"{_KEYS}/{{key_id}}/revoke", gives=ApiKeyObject, needs=ADMIN, errors=READ_ERRORS)
    async def revoke_key(self, request: Request) -> None:
        """Revoke an API key. All servers reject it within seconds. Revoking it again has no effect. An extension."""
        await request.reply(200, encode(await self.keys.revoke(request.principal, request.params["key_id"])))

    @Route("GET", "/v1/antiphon/usage", query=UsageQuery, gives=UsageList, needs=ADMIN, errors=READ_ERRORS)
    async def list_usage(self, request: Request) -> None:
        """List what API keys have used. Responses and tokens of each key and day, the latest day first, of all tenants
        or of one. An extension.
        """
        await request.reply(200, encode(await self.keys.list_usage(read_query(request, UsageQuery))))

    @Route("GET", "/v1/antiphon/server", gives=ServerStatus, needs=ADMIN)
    async def show_server(self, request: Request) -> None:
        """Show the state of the server. Queues, load shedding, the store, and samples of the last hour, of the
        process that answers. An extension.
        """
        await request.reply(200, encode(self.monitor.describe()))
