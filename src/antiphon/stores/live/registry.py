"""The registered live logs. An entry here makes a log selectable and subject to the contract tests."""

from antiphon.errors import StartupError
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog, SharedLimits
from antiphon.stores.plugin_loading import load

# By the name of the store whose rows hold the batches.
BY_STORE: dict[str, str] = {
    "local": "antiphon.stores.live.local:LocalLiveLog",
    "postgresql": "antiphon.stores.live.postgres:PostgresLiveLog",
}

# By the URL scheme of --live.
BY_SCHEME: dict[str, str] = {
    "redis": "antiphon.stores.live.redis:RedisLiveLog",
    "rediss": "antiphon.stores.live.redis:RedisLiveLog",
}

# Likewise: rate limits shared by all servers on such a live log.
SHARED_LIMITS: dict[str, str] = {
    "redis": "antiphon.stores.live.redis_limits:RedisLimits",
    "rediss": "antiphon.stores.live.redis_limits:RedisLimits",
}


def make_live_log(address: str | None, store: Store, ttl: float) -> LiveLog:
    """Create the live log named by --live, or the store's own. `ttl`: seconds that a separate log retains data."""
    log: LiveLog
    if address is None:
        log = load(BY_STORE.get(store.name, BY_STORE["local"]))(store)
    else:
        log = load(BY_SCHEME[_scheme(address)])(address, ttl)
    return log


def make_shared_limits(address: str | None) -> SharedLimits | None:
    """Create the shared limits for --live; None if there are no other servers to share with."""
    if address is None:
        return None
    found: SharedLimits = load(SHARED_LIMITS[_scheme(address)])(address)
    return found


def _scheme(address: str) -> str:
    scheme = address.partition("://")[0]
    if scheme not in BY_SCHEME:
        raise StartupError(f"--live takes a URL that begins with {' or '.join(f'{s}://' for s in BY_SCHEME)}.")
    return scheme
