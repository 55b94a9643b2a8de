"""A client of the containers API in this process, which checks every object that it receives."""

from typing import Any

from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.tools.base import CodeContainers, WrittenFile
from tests.api.app import ApiServer
from tests.oracles.containers import check_object
from tests.support.asgi_client import AsgiResponse, Header, call

_FORM: Header = (b"content-type", b"multipart/form-data; boundary=XX")


class ContainerApi:
    def __init__(self, server: ApiServer) -> None:
        self.server = server

    @property
    def components(self) -> Any:
        return self.server.app.lifecycle.components  # type: ignore[attr-defined]  # set by `build_app`

    async def create(self, **fields: Any) -> Any:
        return await self.post("containers", {"name": "box", **fields})

    async def run(self, container_id: str, code: str) -> list[WrittenFile]:
        """Run code as a tool would, and return the files that it wrote."""
        runner: CodeContainers = self.components.code_runner
        events = [event async for event in runner.run(DEFAULT_TENANT, container_id, code)]
        return [event for event in events if isinstance(event, WrittenFile)]

    async def store_file(self, content: bytes, filename: str = "a.txt") -> str:
        answer = await self._send_form("files", content, filename, purpose="user_data")
        assert answer.status == 200, answer.body
        file_id: str = answer.json()["id"]
        return file_id

    async def upload(self, container_id: str, content: bytes, filename: str = "a.txt") -> Any:
        return self._check(await self._send_form(f"containers/{container_id}/files", content, filename))

    async def read(self, container_id: str, file_id: str) -> bytes:
        answer = await self.server.get(f"containers/{container_id}/files/{file_id}/content")
        assert answer.status == 200, answer.body
        return answer.body

    async def get(self, path: str) -> Any:
        return self._check(await self.server.get(path))

    async def post(self, path: str, body: Any) -> Any:
        return self._check(await self.server.post(path, body))

    async def delete(self, path: str) -> Any:
        return self._check(await self.server.delete(path))

    async def refuse(self, method: str, path: str, body: Any = None) -> tuple[int, str | None, str | None]:
        """Send a request that must fail. Returns the status, the code and the parameter."""
        send = {"GET": self.server.get, "DELETE": self.server.delete}
        answer = await (self.server.post(path, body) if method == "POST" else send[method](path))
        assert answer.status >= 400, answer.body
        return answer.status, answer.error["code"], answer.error["param"]

    async def _send_form(self, path: str, content: bytes, filename: str, **fields: str) -> AsgiResponse:
        head = "".join(f'--XX\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
        head += f'--XX\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n'
        body = head.encode() + content + b"\r\n--XX--\r\n"
        length = (b"content-length", b"%d" % len(body))
        return await call(self.server.app, "POST", f"/v1/{path}", _FORM, length, body=[body])

    def _check(self, answer: AsgiResponse) -> Any:
        assert answer.status == 200, answer.body
        return check_object(answer.json())
