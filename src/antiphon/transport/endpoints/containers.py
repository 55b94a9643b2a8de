"""/v1/containers: receives and sends files, decodes bodies; the operations are in service/containers/."""

from collections.abc import AsyncIterator
from urllib.parse import quote

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.containers import decode_container, decode_container_file
from antiphon.protocol.bodies.files import check_filename
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types import containers as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.service.containers.containers import Containers
from antiphon.stores.base import ContainerFileRow
from antiphon.transport.http.channel import Header
from antiphon.transport.http.forms import ReceivedForm, read_form
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json, run_for_client
from antiphon.transport.middleware.routing import READ_ERRORS, Route

_CONTAINER = "/v1/containers/{container_id}"
_FILE = f"{_CONTAINER}/files/{{file_id}}"
_BYTES = "application/octet-stream"


class ContainersEndpoint(Struct, frozen=True):
    service: Containers
    limits: Limits

    @Route("POST", "/v1/containers", takes=wire.CreateContainer, gives=wire.ContainerObject, new_work=True)
    async def create(self, request: Request) -> None:
        """Create a container. The files of `file_ids` are copied into it."""
        parsed, request.ignored = await read_json(request, decode_container, self.limits)
        container = await run_for_client(request, self.service.create(request.tenant, parsed))
        await request.reply(200, encode(container))

    @Route("GET", "/v1/containers", query=wire.ContainersQuery, gives=wire.ContainerList, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> None:
        """List containers. Expired ones are listed for a day."""
        query = read_query(request, wire.ContainersQuery)
        await request.reply(200, encode(await self.service.list_containers(request.tenant, query)))

    @Route("GET", _CONTAINER, gives=wire.ContainerObject, errors=READ_ERRORS)
    async def get(self, request: Request) -> None:
        """Retrieve a container. Like every other use of it, this postpones its expiry."""
        await request.reply(200, encode(await self.service.get(request.tenant, request.params["container_id"])))

    @Route("DELETE", _CONTAINER, gives=wire.ContainerDeleted, errors=READ_ERRORS)
    async def delete(self, request: Request) -> None:
        """Delete a container and its files."""
        container_id = request.params["container_id"]
        await self.service.delete(request.tenant, container_id)
        await request.reply(200, encode(wire.ContainerDeleted(id=container_id)))

    @Route("POST", f"{_CONTAINER}/files", takes=wire.AddContainerFile, gives=wire.ContainerFileObject, new_work=True)
    async def create_file(self, request: Request) -> None:
        """Add a file to a container. JSON with the `file_id` of a stored file, or a form with `file`."""
        tenant, container_id = request.tenant, request.params["container_id"]
        if request.headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data"):
            written = await self._receive(request)
            file = await self.service.record_file(tenant, container_id, written)
        else:
            parsed, request.ignored = await read_json(request, decode_container_file, self.limits)
            file = await self.service.copy_file(tenant, container_id, parsed.file_id)
        await request.reply(200, encode(file))

    async def _receive(self, request: Request) -> ContainerFileRow:
        tenant, container_id = request.tenant, request.params["container_id"]
        form = ReceivedForm[ContainerFileRow]()

        async def save(pieces: AsyncIterator[bytes], max_bytes: int) -> ContainerFileRow:
            check_filename(form.filename, self.limits, "file")
            return await self.service.write_file(tenant, container_id, form.filename, pieces, max_bytes)

        await read_form(request, "file", self.limits.stored_file_bytes, save, form)
        request.ignored = [*form.fields]
        assert form.file is not None
        return form.file

    @Route("GET", f"{_CONTAINER}/files", query=ListQuery, gives=wire.ContainerFileList, errors=READ_ERRORS)
    async def list_files(self, request: Request) -> None:
        """List the files of a container. Those that code has written are among them."""
        query = read_query(request, ListQuery)
        files = await self.service.list_files(request.tenant, request.params["container_id"], query)
        await request.reply(200, encode(files))

    @Route("GET", _FILE, gives=wire.ContainerFileObject, errors=READ_ERRORS)
    async def get_file(self, request: Request) -> None:
        """Retrieve a file of a container."""
        file = await self.service.get_file(request.tenant, request.params["container_id"], request.params["file_id"])
        await request.reply(200, encode(file))

    @Route("DELETE", _FILE, gives=wire.ContainerFileDeleted, errors=READ_ERRORS)
    async def delete_file(self, request: Request) -> None:
        """Delete a file of a container."""
        file_id = request.params["file_id"]
        await self.service.delete_file(request.tenant, request.params["container_id"], file_id)
        await request.reply(200, encode(wire.ContainerFileDeleted(id=file_id)))

    @Route("GET", f"{_FILE}/content", gives_too=(_BYTES,), errors=READ_ERRORS)
    async def content(self, request: Request) -> None:
        """Retrieve the content of a file of a container, as it is now."""
        tenant = request.tenant
        row, file = await self.service.find_file(tenant, request.params["container_id"], request.params["file_id"])
        name = quote(file.path.rpartition("/")[2], safe="")
        headers: list[Header] = [
            (b"content-type", _BYTES.encode()),
            (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        # without a length: code may change the file meanwhile
        await request.reply_in_pieces(200, headers, self.service.read_file(tenant, row, file))
