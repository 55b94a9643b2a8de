"""Whose request it is: a tenant, by a key that may do some things and not others."""

from typing import Final

from msgspec import Struct

INFERENCE: Final = "inference"
ADMIN: Final = "admin"
SCOPES: Final = frozenset({INFERENCE, ADMIN})


class Principal(Struct, frozen=True, kw_only=True):
    tenant: str
    key: str = ""  # the id of the key that was sent; nothing where none is needed
    scopes: frozenset[str] = SCOPES
