"""/v1/containers: receives and sends files, decodes bodies; the operations are in service/containers/."""

from collections.abc import AsyncIterator

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.containers import decode_container, decode_container_file
from antiphon.protocol.bodies.files import check_filename
from antiphon.protocol.types import containers as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.service.containers.containers import Containers
from antiphon.stores.base import ContainerFileRow
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

    @Route("POST", "/v1/containers", takes=wire.CreateContainer, new_work=True)
    async def create(self, request: Request) -> wire.ContainerObject:
        """Create a container. The files of `file_ids` are copied into it."""
        parsed, request.ignored = await read_json(request, decode_container, self.limits)
        return await run_for_client(request, self.service.create(request.tenant, parsed))

    @Route("GET", "/v1/containers", query=wire.ContainersQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> wire.ContainerList:
        """List containers. Expired ones are listed for a day."""
        return await self.service.list_containers(request.tenant, read_query(request, wire.ContainersQuery))

    @Route("GET", _CONTAINER, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.ContainerObject:
        """Retrieve a container. Like every other use of it, this postpones its expiry."""
        return await self.service.get(request.tenant, **request.params)

    @Route("DELETE", _CONTAINER, errors=READ_ERRORS)
    async def delete(self, request: Request) -> wire.ContainerDeleted:
        """Delete a container and its files."""
        return await self.service.delete(request.tenant, **request.params)

    @Route("POST", f"{_CONTAINER}/files", takes=wire.AddContainerFile, new_work=True)
    async def create_file(self, request: Request) -> wire.ContainerFileObject:
        """Add a file to a container. JSON with the `file_id` of a stored file, or a form with `file`."""
        if request.headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data"):
            return await self.service.record_file(request.tenant, **request.params, file=await self._receive(request))
        parsed, request.ignored = await read_json(request, decode_container_file, self.limits)
        return await self.service.copy_file(request.tenant, **request.params, file_id=parsed.file_id)

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

    @Route("GET", f"{_CONTAINER}/files", query=ListQuery, errors=READ_ERRORS)
    async def list_files(self, request: Request) -> wire.ContainerFileList:
        """List the files of a container. Those that code has written are among them."""
        return await self.service.list_files(request.tenant, **request.params, query=read_query(request, ListQuery))

    @Route("GET", _FILE, errors=READ_ERRORS)
    async def get_file(self, request: Request) -> wire.ContainerFileObject:
        """Retrieve a file of a container."""
        return await self.service.get_file(request.tenant, **request.params)

    @Route("DELETE", _FILE, errors=READ_ERRORS)
    async def delete_file(self, request: Request) -> wire.ContainerFileDeleted:
        """Delete a file of a container."""
        return await self.service.delete_file(request.tenant, **request.params)

    @Route("GET", f"{_FILE}/content", gives_too=(_BYTES,), errors=READ_ERRORS)
    async def content(self, request: Request) -> None:
        """Retrieve the content of a file of a container, as it is now."""
        row, file = await self.service.find_file(request.tenant, **request.params)
        pieces = self.service.read_file(request.tenant, row, file)
        # without a length: code may change the file meanwhile
        await request.send_file(file.path.rpartition("/")[2], _BYTES, pieces)
