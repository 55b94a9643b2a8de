"""/v1/skills: receives the files of skills and sends them; the operations are in service/skills/."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from msgspec import Meta, Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.skills import decode_skill_update, decode_version_fields
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types import skills as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.service.skills.bundle import MAX_FILES, MAX_ZIP_BYTES
from antiphon.service.skills.skills import Skills
from antiphon.transport.http.forms import FormFile, read_files
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_SKILL = "/v1/skills/{skill_id}"
_VERSION = f"{_SKILL}/versions/{{version}}"
_FORM = "multipart/form-data"
_ZIP = "application/zip"


class SkillForm(Struct, frozen=True, kw_only=True):
    """The form of a skill, for the description of the API."""

    files: Annotated[list[bytes], Meta(min_length=1, max_length=MAX_FILES)]


class SkillVersionForm(SkillForm, frozen=True, kw_only=True):
    """The form of a version, for the description of the API."""

    default: bool = False


class SkillsEndpoint(Struct, frozen=True):
    service: Skills
    limits: Limits

    @Route("POST", "/v1/skills", takes=SkillForm, takes_media_type=_FORM, gives=wire.SkillObject, new_work=True)
    async def create(self, request: Request) -> None:
        """Create a skill. A form with `files[]`, whose names are paths in one folder, or with one zip file."""
        files, fields = await read_files(request, ("files",), MAX_ZIP_BYTES, MAX_FILES)
        request.ignored = [*fields]
        await request.reply(200, encode(await self.service.create(request.tenant, _list_contents(files))))

    @Route("GET", "/v1/skills", query=ListQuery, gives=wire.SkillList, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> None:
        """List skills."""
        query = read_query(request, ListQuery)
        await request.reply(200, encode(await self.service.list_skills(request.tenant, query)))

    @Route("GET", _SKILL, gives=wire.SkillObject, errors=READ_ERRORS)
    async def get(self, request: Request) -> None:
        """Retrieve a skill."""
        await request.reply(200, encode(await self.service.get(request.tenant, request.params["skill_id"])))

    @Route("POST", _SKILL, takes=wire.UpdateSkill, gives=wire.SkillObject, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> None:
        """Set the default version of a skill."""
        parsed, request.ignored = await read_json(request, decode_skill_update, self.limits)
        skill = await self.service.set_default(request.tenant, request.params["skill_id"], parsed.default_version)
        await request.reply(200, encode(skill))

    @Route("DELETE", _SKILL, gives=wire.SkillDeleted, errors=READ_ERRORS)
    async def delete(self, request: Request) -> None:
        """Delete a skill and its versions."""
        skill_id = request.params["skill_id"]
        await self.service.delete(request.tenant, skill_id)
        await request.reply(200, encode(wire.SkillDeleted(id=skill_id)))

    @Route("GET", f"{_SKILL}/content", gives_too=(_ZIP,), errors=READ_ERRORS)
    async def content(self, request: Request) -> None:
        """Retrieve the zip file of the default version."""
        await self._send_zip(request, None)

    @Route(
        "POST", f"{_SKILL}/versions", takes=SkillVersionForm, takes_media_type=_FORM, gives=wire.SkillVersionObject,
        new_work=True, errors=(404,),
    )  # fmt: skip
    async def create_version(self, request: Request) -> None:
        """Create a version of a skill. The same form, and optionally `default`."""
        skill_id = request.params["skill_id"]
        await self.service.find(request.tenant, skill_id)
        files, fields = await read_files(request, ("files",), MAX_ZIP_BYTES, MAX_FILES)
        make_default, request.ignored = decode_version_fields(fields)
        version = await self.service.create_version(request.tenant, skill_id, _list_contents(files), make_default)
        await request.reply(200, encode(version))

    @Route("GET", f"{_SKILL}/versions", query=ListQuery, gives=wire.SkillVersionList, errors=READ_ERRORS)
    async def list_versions(self, request: Request) -> None:
        """List the versions of a skill."""
        query = read_query(request, ListQuery)
        versions = await self.service.list_versions(request.tenant, request.params["skill_id"], query)
        await request.reply(200, encode(versions))

    @Route("GET", _VERSION, gives=wire.SkillVersionObject, errors=READ_ERRORS)
    async def get_version(self, request: Request) -> None:
        """Retrieve a version of a skill."""
        params = request.params
        version = await self.service.get_version(request.tenant, params["skill_id"], params["version"])
        await request.reply(200, encode(version))

    @Route("DELETE", _VERSION, gives=wire.SkillVersionDeleted, errors=READ_ERRORS)
    async def delete_version(self, request: Request) -> None:
        """Delete a version of a skill. Its last one is deleted with the skill."""
        params = request.params
        deleted = await self.service.delete_version(request.tenant, params["skill_id"], params["version"])
        await request.reply(200, encode(deleted))

    @Route("GET", f"{_VERSION}/content", gives_too=(_ZIP,), errors=READ_ERRORS)
    async def version_content(self, request: Request) -> None:
        """Retrieve the zip file of a version."""
        await self._send_zip(request, request.params["version"])

    async def _send_zip(self, request: Request, version: str | None) -> None:
        row = await self.service.find_version(request.tenant, request.params["skill_id"], version)
        name = quote(f"{row.name}.zip", safe="")
        headers = [
            (b"content-type", _ZIP.encode()),
            (b"content-length", b"%d" % row.size),
            (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        await request.reply_in_pieces(200, headers, self.service.read(row))


def _list_contents(files: Sequence[FormFile]) -> list[tuple[str, bytes]]:
    return [(file.name, file.content) for file in files]
