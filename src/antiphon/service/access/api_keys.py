"""Who may come in: by keys that were given at the start or in a file, and by those that the store has.

    a key ─▶ its digest ─▶ known? ─ yes ─▶ whose it is, at once
                             └ no ─▶ could the store have it? ─▶ it is asked once ─▶ known, or unknown for a while

Every few seconds the store is asked again about all that came from there: who was revoked is out, in every server. If
the store does not answer, what it said last holds for some minutes. Once there was a key, everybody needs one.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from time import monotonic, time
from typing import Protocol, TypeVar

from msgspec import Struct

from antiphon.config.key_settings import GivenKey
from antiphon.errors import Busy, StartupError, Unavailable
from antiphon.service.access.api_key_format import id_in, id_of, new_secret, secret_of
from antiphon.service.access.principal import INFERENCE, SCOPES, Principal
from antiphon.service.encryption.cache_salt import TENANT
from antiphon.stores.base import ApiKey

T = TypeVar("T")

LOOK_SECONDS = 2.0
TRUST_SECONDS = 300.0  # for which the store's last word holds while it says nothing
_UNKNOWN_SECONDS = 3.0
_MOST_KNOWN = 4096
_MOST_UNKNOWN = 1024
_LANES = 8  # look-ups at once; those of one key come one after the other
_MOST_WAITING = 64
_LONGEST = 4096  # bytes of a key


class KeyStore(Protocol):
    name: str

    async def find_api_keys(self, ids: list[str]) -> list[ApiKey]: ...

    async def has_api_keys(self) -> bool: ...

    async def shared(self, name: str, new: bytes) -> bytes: ...


class _Known(Struct, frozen=True):
    principal: Principal
    expires: float | None = None


class Keys:
    def __init__(
        self, given: Iterable[GivenKey] = (), store: KeyStore | None = None, clock: Callable[[], float] = time
    ) -> None:
        self._secret = new_secret()  # of what given keys are called
        self._named: Sequence[GivenKey] = [*given]
        self._given = _by_digest(self._named, self._secret)
        self._stored: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}  # and until when that is believed
        self._store = store
        self._clock = clock
        self._heard = monotonic()
        self._waiting = 0
        self._lanes = [asyncio.Lock() for _ in range(_LANES)]
        self._demanded = ""
        self.required = bool(self._given)

    def demand(self, host: str) -> None:
        """Others than this machine can reach the server there. Raises StartupError if nobody can have a key; if the
        store may have some, `open` does."""
        self._demanded = host
        if self._store is None:
            self._check_demand()

    async def open(self) -> None:
        """Raises StartupError if the store cannot say whether there are keys: nobody is let in by mistake."""
        try:
            await self.look()
            if self._store is not None:
                self._secret = await secret_of(self._store)
                self.renew(self._named)
        except Unavailable as error:
            raise StartupError(error.message) from None
        self._check_demand()

    async def attend(self) -> None:
        """Forever. A store that nobody else can reach never changes."""
        while self._store is not None and self._store.name != "memory":
            await asyncio.sleep(LOOK_SECONDS)
            await self._look_if_possible()

    async def look(self) -> None:
        """Ask the store about all that it has told us."""
        if self._store is None:
            return
        if not self.required and await self._store.has_api_keys():
            self.required = True
        digests = {known.principal.key: digest for digest, known in self._stored.items()}
        rows = await self._store.find_api_keys([*digests]) if digests else []
        good = {row.id: row for row in rows if self._is_good(row)}
        for name, digest in digests.items():
            if name in good:
                self._stored[digest] = _known(good[name])
            else:
                self._stored.pop(digest, None)
        self._heard = monotonic()

    def renew(self, given: Sequence[GivenKey]) -> None:
        """In place of those that were given before. Without any the doors stay closed."""
        self._named, self._given = given, _by_digest(given, self._secret)
        self.required = self.required or bool(self._given)

    def find(self, key: bytes) -> Principal | None:
        """Whose a known key is. Where digests differ, how far they agree tells nothing about the key."""
        if not 0 < len(key) <= _LONGEST:
            return None
        return self._found(sha256(key).digest())

    def may_ask(self, key: bytes) -> bool:
        """Could the store have it?"""
        return self._store is not None and id_in(key) is not None

    async def ask(self, key: bytes) -> Principal | None:
        """Of one that is not known. Raises Busy while too many are asked for, and Unavailable."""
        if self._waiting >= _MOST_WAITING:
            raise Busy("Too many keys are being looked up; try again in a moment.", retry_after=1.0)
        digest = sha256(key).digest()
        self._waiting += 1
        try:
            async with self._lanes[digest[0] % _LANES]:
                if self._unknown.get(digest, 0.0) > monotonic():
                    return None
                return self._found(digest) or await self._look_up(key, digest)
        finally:
            self._waiting -= 1

    def _found(self, digest: bytes) -> Principal | None:
        known = self._given.get(digest) or self._stored.get(digest)
        if known is None or (known.expires is not None and known.expires <= self._clock()):
            return None
        return known.principal

    async def _look_up(self, key: bytes, digest: bytes) -> Principal | None:
        assert self._store is not None  # as `may_ask` said
        for row in await self._store.find_api_keys([id_in(key) or ""]):
            if hmac.compare_digest(row.digest, digest) and self._is_good(row):
                self.required = True
                _put(self._stored, digest, _known(row), _MOST_KNOWN)
                return self._stored[digest].principal
        _put(self._unknown, digest, monotonic() + _UNKNOWN_SECONDS, _MOST_UNKNOWN)
        return None

    async def _look_if_possible(self) -> None:
        try:
            await self.look()
        except Unavailable:
            if monotonic() - self._heard > TRUST_SECONDS:
                self._stored.clear()

    def _is_good(self, row: ApiKey) -> bool:
        return bool(row.tenant) and row.revoked is None and (row.expires is None or row.expires > self._clock())

    def _check_demand(self) -> None:
        if self._demanded and not self.required:
            raise StartupError(
                f"Listening on {self._demanded} would let others than this machine in; that needs an API key. "
                "Make one with `antiphon keys create`, give one with --api-key, or listen on 127.0.0.1."
            )


def _by_digest(given: Iterable[GivenKey], secret: bytes) -> dict[bytes, _Known]:
    return {sha256(one.key.encode()).digest(): _Known(given_principal(one, secret)) for one in given}


def given_principal(given: GivenKey, secret: bytes) -> Principal:
    key = id_of(secret, given.key)
    if given.tenant is None:
        return Principal(tenant=TENANT, key=key, scopes=SCOPES)
    return Principal(tenant=given.tenant, key=key, scopes=frozenset({INFERENCE}))


def _known(row: ApiKey) -> _Known:
    return _Known(Principal(tenant=row.tenant, key=row.id, scopes=row.scopes), row.expires)


def _put(held: dict[bytes, T], digest: bytes, value: T, most: int) -> None:
    while len(held) >= most:
        del held[next(iter(held))]
    held[digest] = value
