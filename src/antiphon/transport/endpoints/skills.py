"""/v1/skills: receives the files of skills and sends them; the operations are in service/skills/."""

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.skills import decode_skill_update, decode_version_fields
from antiphon.protocol.types import skills as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.service.skills.bundle import MAX_FILES, MAX_ZIP_BYTES
from antiphon.service.skills.skills import Skills, UploadedFile
from antiphon.transport.http.forms import read_files
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

    @Route("POST", "/v1/skills", takes=SkillForm, takes_media_type=_FORM, new_work=True)
    async def create(self, request: Request) -> wire.SkillObject:
        """Create a skill. A form with `files[]`, whose names are paths in one folder, or with one zip file."""
        files, fields = await self._read_form(request)
        request.ignored = [*fields]
        return await self.service.create(request.tenant, files)

    @Route("GET", "/v1/skills", query=ListQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> wire.SkillList:
        """List skills."""
        return await self.service.list_skills(request.tenant, read_query(request, ListQuery))

    @Route("GET", _SKILL, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.SkillObject:
        """Retrieve a skill."""
        return await self.service.get(request.tenant, **request.params)

    @Route("POST", _SKILL, takes=wire.UpdateSkill, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> wire.SkillObject:
        """Set the default version of a skill."""
        parsed, request.ignored = await read_json(request, decode_skill_update, self.limits)
        return await self.service.set_default(request.tenant, **request.params, version=parsed.default_version)

    @Route("DELETE", _SKILL, errors=READ_ERRORS)
    async def delete(self, request: Request) -> wire.SkillDeleted:
        """Delete a skill and its versions."""
        return await self.service.delete(request.tenant, **request.params)

    @Route("GET", f"{_SKILL}/content", gives_too=(_ZIP,), errors=READ_ERRORS)
    async def content(self, request: Request) -> None:
        """Retrieve the zip file of the default version."""
        await self._send_zip(request, None)

    @Route("POST", f"{_SKILL}/versions", takes=SkillVersionForm, takes_media_type=_FORM, new_work=True, errors=(404,))
    async def create_version(self, request: Request) -> wire.SkillVersionObject:
        """Create a version of a skill. The same form, and optionally `default`."""
        await self.service.find(request.tenant, **request.params)
        files, fields = await self._read_form(request)
        make_default, request.ignored = decode_version_fields(fields)
        return await self.service.create_version(
            request.tenant, **request.params, files=files, make_default=make_default
        )

    @Route("GET", f"{_SKILL}/versions", query=ListQuery, errors=READ_ERRORS)
    async def list_versions(self, request: Request) -> wire.SkillVersionList:
        """List the versions of a skill."""
        return await self.service.list_versions(request.tenant, **request.params, query=read_query(request, ListQuery))

    @Route("GET", _VERSION, errors=READ_ERRORS)
    async def get_version(self, request: Request) -> wire.SkillVersionObject:
        """Retrieve a version of a skill."""
        return await self.service.get_version(request.tenant, **request.params)

    @Route("DELETE", _VERSION, errors=READ_ERRORS)
    async def delete_version(self, request: Request) -> wire.SkillVersionDeleted:
        """Delete a version of a skill. Its last one is deleted with the skill."""
        return await self.service.delete_version(request.tenant, **request.params)

    @Route("GET", f"{_VERSION}/content", gives_too=(_ZIP,), errors=READ_ERRORS)
    async def version_content(self, request: Request) -> None:
        """Retrieve the zip file of a version."""
        await self._send_zip(request, request.params["version"])

    async def _read_form(self, request: Request) -> tuple[list[UploadedFile], dict[str, str]]:
        files, fields = await read_files(request, ("files",), MAX_ZIP_BYTES, MAX_FILES)
        return [(file.name, file.content) for file in files], fields

    async def _send_zip(self, request: Request, version: str | None) -> None:
        row = await self.service.find_version(request.tenant, request.params["skill_id"], version)
        length = (b"content-length", b"%d" % row.size)
        await request.send_file(f"{row.name}.zip", _ZIP, self.service.read(row), length)
