"""Authentication by API keys from the configuration and from the store.

    key ─▶ digest ─▶ cached? ─ yes ─▶ principal, without waiting
                        └ no ─▶ valid format? ─▶ one store lookup ─▶ cached, or unknown for a while

Keys from the store are refreshed every few seconds, so a revoked key is rejected by every server. While the store is
unavailable, the last result is valid for some minutes. Once a key existed, every request needs one.

Issued keys have the format `ak_`, the digits of the key's id, and a secret of 192 bits, which secret scanners and
people recognise. Only a digest of the key is stored; with this much entropy a slow hash is unnecessary.

Keys configured by flag, variable or file get an id derived from the key itself, so logs and limits stay with a key when
others are added or removed. The id is keyed with a secret that only the store holds: log readers cannot verify a guess
of a key. Without a persistent store the ids last as long as the server.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from hashlib import blake2b, sha256
from secrets import token_bytes, token_hex
from time import monotonic, time
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from antiphon.config.key_settings import ConfiguredKey
from antiphon.config.setting_types import Tenant
from antiphon.errors import Busy, StartupError, Unavailable
from antiphon.ids import new_id
from antiphon.stores.base import ApiKey

T = TypeVar("T")

DEFAULT_TENANT: Final = "default"  # tenant of a server without tenants; its prompts share a cache
INFERENCE: Final = "inference"
ADMIN: Final = "admin"
SCOPES: Final = frozenset({INFERENCE, ADMIN})

KEY_PREFIX = b"ak_"
_KEY_PATTERN = re.compile(rb"ak_([0-9a-f]{32})_[0-9a-f]{48}")
_SECRET_BYTES = 24
_ID_SECRET_BYTES = 32  # of the secret for the ids of configured keys
_MAX_NAME_LENGTH = 100
_DIGEST_BYTES = 6

REFRESH_SECONDS = 2.0
TRUST_SECONDS = 300.0  # validity of cached store keys while the store is unavailable
_UNKNOWN_SECONDS = 3.0
_MAX_CACHED = 4096
_MAX_UNKNOWN = 1024
_MAX_LOOKUPS = 8  # concurrent lookups; lookups of the same key are serialised
_MAX_WAITING = 64
_MAX_KEY_BYTES = 4096


class Principal(Struct, frozen=True, kw_only=True):
    tenant: str
    key: str = ""  # id of the API key that was sent; empty where none is required
    scopes: frozenset[str] = SCOPES


class KeyStore(Protocol):
    name: str

    async def find_api_keys(self, ids: list[str]) -> list[ApiKey]: ...

    async def has_api_keys(self) -> bool: ...

    async def shared(self, name: str, new: bytes) -> bytes: ...


class _CachedKey(Struct, frozen=True):
    principal: Principal
    expires: float | None = None


class ApiKeys:
    def __init__(
        self, configured: Iterable[ConfiguredKey] = (), store: KeyStore | None = None, clock: Callable[[], float] = time
    ) -> None:
        self._secret = token_bytes(_ID_SECRET_BYTES)  # for the ids of configured keys
        self._configured_keys: Sequence[ConfiguredKey] = [*configured]
        self._configured = _index_by_digest(self._configured_keys, self._secret)
        self._stored: dict[bytes, _CachedKey] = {}
        self._unknown: dict[bytes, float] = {}  # digest → expiry of the negative result
        self._store = store
        self._clock = clock
        self._refreshed_at = monotonic()
        self._waiting = 0
        self._lookup_locks = [asyncio.Lock() for _ in range(_MAX_LOOKUPS)]
        self._public_host = ""
        self.required = bool(self._configured)

    def require_for(self, host: str) -> None:
        """Require keys because other machines can reach the server at `host`.

        Raises StartupError if there can be none. If the store may hold some, `open` checks instead.
        """
        self._public_host = host
        if self._store is None:
            self._check_required()

    async def open(self) -> None:
        """Load the keys. Raises StartupError if the store is unavailable: clients might be admitted without a key."""
        try:
            await self.refresh()
            if self._store is not None:
                self._secret = await load_secret(self._store.shared)
                self.replace_configured(self._configured_keys)
        except Unavailable as error:
            raise StartupError(error.message) from None
        self._check_required()

    async def run_forever(self) -> None:
        """Refresh until cancelled. The in-memory store is not shared, so its keys never change."""
        while self._store is not None and self._store.name != "memory":
            await asyncio.sleep(REFRESH_SECONDS)
            await self._try_refresh()

    async def refresh(self) -> None:
        """Refresh the cached keys of the store."""
        if self._store is None:
            return
        if not self.required and await self._store.has_api_keys():
            self.required = True
        digests = {cached.principal.key: digest for digest, cached in self._stored.items()}
        rows = await self._store.find_api_keys([*digests]) if digests else []
        valid = {row.id: row for row in rows if self._is_valid(row)}
        for key_id, digest in digests.items():
            if key_id in valid:
                self._stored[digest] = _to_cached_key(valid[key_id])
            else:
                self._stored.pop(digest, None)
        self._refreshed_at = monotonic()

    def replace_configured(self, configured: Sequence[ConfiguredKey]) -> None:
        """Replace the configured keys. Removing all of them does not make keys optional."""
        self._configured_keys, self._configured = configured, _index_by_digest(configured, self._secret)
        self.required = self.required or bool(self._configured)

    def list_configured(self) -> list[Principal]:
        """Return the principals of the configured keys."""
        return [cached.principal for cached in self._configured.values()]

    def find(self, key: bytes) -> Principal | None:
        """Return the principal of a cached key. It is looked up by digest, so the timing does not reveal the key."""
        if len(key) > _MAX_KEY_BYTES:
            return None
        return self._find_by_digest(sha256(key).digest())

    def can_look_up(self, key: bytes) -> bool:
        """Return whether the store may hold the key."""
        return self._store is not None and parse_key_id(key) is not None

    async def look_up(self, key: bytes) -> Principal | None:
        """Look up a key that is not cached. Raises Busy while too many lookups wait, and Unavailable."""
        if self._waiting >= _MAX_WAITING:
            raise Busy("Too many keys are being looked up; try again in a moment.", retry_after=1.0)
        digest = sha256(key).digest()
        self._waiting += 1
        try:
            async with self._lookup_locks[digest[0] % _MAX_LOOKUPS]:
                if self._unknown.get(digest, 0.0) > monotonic():
                    return None
                return self._find_by_digest(digest) or await self._query_store(key, digest)
        finally:
            self._waiting -= 1

    def _find_by_digest(self, digest: bytes) -> Principal | None:
        cached = self._configured.get(digest) or self._stored.get(digest)
        if cached is None or (cached.expires is not None and cached.expires <= self._clock()):
            return None
        return cached.principal

    async def _query_store(self, key: bytes, digest: bytes) -> Principal | None:
        assert self._store is not None  # checked by `can_look_up`
        for row in await self._store.find_api_keys([parse_key_id(key) or ""]):
            if hmac.compare_digest(row.digest, digest) and self._is_valid(row):
                self.required = True
                _put_bounded(self._stored, digest, _to_cached_key(row), _MAX_CACHED)
                return self._stored[digest].principal
        _put_bounded(self._unknown, digest, monotonic() + _UNKNOWN_SECONDS, _MAX_UNKNOWN)
        return None

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except Unavailable:
            if monotonic() - self._refreshed_at > TRUST_SECONDS:
                self._stored.clear()

    def _is_valid(self, row: ApiKey) -> bool:
        return bool(row.tenant) and row.revoked is None and (row.expires is None or row.expires > self._clock())

    def _check_required(self) -> None:
        if self._public_host and not self.required:
            raise StartupError(
                f"Listening on {self._public_host} exposes the server to other machines, which requires an API key. "
                "Create one with `antiphon keys create`, set --api-key, or listen on 127.0.0.1."
            )


def _index_by_digest(configured: Iterable[ConfiguredKey], secret: bytes) -> dict[bytes, _CachedKey]:
    return {sha256(entry.key.encode()).digest(): _CachedKey(make_principal(entry, secret)) for entry in configured}


def make_principal(configured: ConfiguredKey, secret: bytes) -> Principal:
    key = f"given_{blake2b(configured.key.encode(), key=secret, digest_size=_DIGEST_BYTES).hexdigest()}"
    if configured.tenant is None:
        return Principal(tenant=DEFAULT_TENANT, key=key, scopes=SCOPES)
    return Principal(tenant=configured.tenant, key=key, scopes=frozenset({INFERENCE}))


def _to_cached_key(row: ApiKey) -> _CachedKey:
    return _CachedKey(Principal(tenant=row.tenant, key=row.id, scopes=row.scopes), row.expires)


def _put_bounded(entries: dict[bytes, T], digest: bytes, value: T, limit: int) -> None:
    while len(entries) >= limit:
        del entries[next(iter(entries))]
    entries[digest] = value


def issue(tenant: str, name: str, scopes: Collection[str], created: float, expires: float | None) -> tuple[ApiKey, str]:
    """Create a key. Returns the row to store and the key, which cannot be recovered. Raises StartupError."""
    check_tenant(tenant)
    granted = frozenset(scopes or (INFERENCE,))
    if unknown := sorted(granted - SCOPES):
        raise StartupError(f"Unknown scope {unknown[0]!r}; expected {' or '.join(sorted(SCOPES))}.")
    if len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise StartupError(f"The name of a key must be one line of at most {_MAX_NAME_LENGTH} characters.")
    if expires is not None and expires <= created:
        raise StartupError("The expiry time must be in the future.")
    key_id = new_id("key")
    key = f"ak_{key_id.removeprefix('key_')}_{token_hex(_SECRET_BYTES)}"
    return ApiKey(key_id, sha256(key.encode()).digest(), tenant, name, granted, created, expires), key


def check_tenant(tenant: str) -> None:
    try:
        msgspec.convert(tenant, Tenant)
    except msgspec.ValidationError:
        raise StartupError(
            f"{tenant!r} is not a valid tenant name; use up to 63 lower-case letters, digits, dots, dashes and"
            " underscores, starting with a letter or digit."
        ) from None


def parse_key_id(key: bytes) -> str | None:
    """Return the row id that the key contains; None if it is not in the format of this server."""
    match = _KEY_PATTERN.fullmatch(key)
    return f"key_{match[1].decode()}" if match else None


async def load_secret(shared: Callable[[str, bytes], Awaitable[bytes]]) -> bytes:
    """Return the secret that all servers of the store share, by `Store.shared`."""
    return await shared("key_ids", token_bytes(_ID_SECRET_BYTES))
