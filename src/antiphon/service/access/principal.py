"""The principal of a request: a tenant, and an API key with scopes."""

from typing import Final

from msgspec import Struct

INFERENCE: Final = "inference"
ADMIN: Final = "admin"
SCOPES: Final = frozenset({INFERENCE, ADMIN})


class Principal(Struct, frozen=True, kw_only=True):
    tenant: str
    key: str = ""  # id of the API key that was sent; empty where none is required
    scopes: frozenset[str] = SCOPES
