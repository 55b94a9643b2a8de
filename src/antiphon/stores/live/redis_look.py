"""What can be told of a Redis or Valkey without using it: nothing is changed."""

import asyncio
from typing import Any

from msgspec import Struct
from redis.exceptions import AuthenticationError

from antiphon.errors import StartupError
from antiphon.stores.live.redis import DEADLINE, FAULTS, client, where


class Looked(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    replica: bool
    evicts: str  # how it makes room; "noeviction": it does not
    bounded: bool  # in its memory


async def look(url: str) -> Looked:
    """Raises StartupError."""
    redis = client(url)
    try:
        async with asyncio.timeout(DEADLINE):
            told: dict[str, Any] = await redis.info()
    except AuthenticationError:
        raise StartupError(f"Redis at {where(url)} refuses the password of --live.") from None
    except FAULTS as error:
        raise StartupError(f"Redis at {where(url)} does not answer: {error or 'it takes too long'}") from None
    finally:
        await redis.aclose()
    valkey = told.get("valkey_version")
    return Looked(
        name="Valkey" if valkey else "Redis",
        version=str(valkey or told.get("redis_version", "of unknown version")),
        replica=told.get("role") == "slave",
        evicts=str(told.get("maxmemory_policy", "noeviction")),
        bounded=bool(told.get("maxmemory", 0)),
    )
