"""Runs the tests of the endpoints on our own server and on uvicorn."""

import pytest

from tests.support import asgi_client


@pytest.fixture(autouse=True, params=["own", "uvicorn"])
def server_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_client, "server_kind", request.param)
