"""Runs the tests of these endpoints on our own server and on uvicorn."""

from tests.transport.endpoints.conftest import server_kind

__all__ = ["server_kind"]
