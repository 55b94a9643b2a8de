"""Every /v1 path is also served under /v3 and without a prefix, and described once."""

import re

import pytest

from tests.api.app import run_api
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio


@pytest.mark.shows("G2.2", "G2.3")
async def test_every_path_is_served_under_every_prefix_and_described_once() -> None:
    async with run_api() as server:
        described = (await call(server.app, "GET", "/openapi.json")).json()["paths"]
        ours = [path for path in described if path.startswith("/v1/")]
        assert len(ours) > 15
        assert not [path for path in described if path.startswith("/v3/") or path.replace("/", "/v1/", 1) in ours]
        for path in ours:
            filled = re.sub(r"{.*?}", "x", path).removeprefix("/v1")
            for prefix in ("/v1", "/v3", ""):
                wrong = await call(server.app, "PUT", prefix + filled)
                assert wrong.status == 405, prefix + filled  # the path exists, but not for this method
        for nowhere in ("/v2/responses", "/v3", "/v3/v1/responses", "/v1/v3/responses"):
            assert (await call(server.app, "PUT", nowhere)).status == 404


@pytest.mark.shows("G2.2")
async def test_a_response_is_the_same_under_v3() -> None:
    async with run_api() as server:
        made = await server.create()
        read = await call(server.app, "GET", f"/v3/responses/{made['id']}")
    assert (read.status, read.json()) == (200, made)
