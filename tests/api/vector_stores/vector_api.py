"""A client of the vector stores API in this process, which checks every object that it receives."""

from typing import Any

from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.service.vector_stores.search import VectorSearch
from tests.api.app import ApiServer
from tests.oracles.vector_stores import check_object
from tests.support.asgi_client import DEADLINE, AsgiResponse, Header, call

_FORM: Header = (b"content-type", b"multipart/form-data; boundary=XX")


class VectorApi:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.file_ids: list[str] = []  # of the last `create_indexed`

    async def upload(self, content: str | bytes, filename: str = "a.txt") -> str:
        """Upload a file and return its id."""
        data = content if isinstance(content, bytes) else content.encode()
        body = (
            f'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--XX\r\nContent-Disposition: '
            f'form-data; name="file"; filename="{filename}"\r\n\r\n'
        ).encode()
        body += data + b"\r\n--XX--\r\n"
        length = (b"content-length", b"%d" % len(body))
        answer = await call(self.server.app, "POST", "/v1/files", _FORM, length, body=[body])
        assert answer.status == 200, answer.body
        file_id: str = answer.json()["id"]
        return file_id

    async def create(self, **fields: Any) -> Any:
        return await self.post("", fields)

    async def create_indexed(self, *texts: str | bytes, **fields: Any) -> Any:
        """Create a vector store with files of these texts, and return it when they are indexed."""
        self.file_ids = [await self.upload(text, f"{number}.txt") for number, text in enumerate(texts)]
        store = await self.create(file_ids=self.file_ids, **fields)
        await self.wait(store["id"])
        return await self.get(store["id"])

    async def wait(self, *store_ids: str) -> None:
        search: VectorSearch = self.server.app.lifecycle.components.vector_search  # type: ignore[attr-defined]  # set by `build_app`
        assert await search.wait_indexed(DEFAULT_TENANT, store_ids, DEADLINE)

    async def get(self, path: str = "") -> Any:
        return self._check(await self.server.get(self._path(path)))

    async def post(self, path: str, body: Any = None) -> Any:
        return self._check(await self.server.post(self._path(path), body))

    async def delete(self, path: str) -> Any:
        return self._check(await self.server.delete(self._path(path)))

    async def refuse(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, str | None, str]:
        """Send a request that must fail. Returns the status, the parameter and the message."""
        path = self._path(path)
        send = {"GET": self.server.get, "DELETE": self.server.delete}
        answer = await (self.server.post(path, body) if method == "POST" else send[method](path))
        assert answer.status >= 400, answer.body
        return answer.status, answer.error["param"], answer.error["message"]

    def _path(self, path: str) -> str:
        return f"vector_stores{'' if not path or path.startswith('?') else '/'}{path}"

    def _check(self, answer: AsgiResponse) -> Any:
        assert answer.status == 200, answer.body
        return check_object(answer.json())
