"""The live logs there are. A line here makes a log selectable and puts it under the contract suite."""

from antiphon.errors import StartupError
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog, Till
from antiphon.stores.plugin_loading import load

# By the store whose rows they are.
WITH_STORE: dict[str, str] = {
    "local": "antiphon.stores.live.local:LocalLive",
    "postgresql": "antiphon.stores.live.postgres:PostgresLive",
}

# By the scheme of --live.
BY_ADDRESS: dict[str, str] = {
    "redis": "antiphon.stores.live.redis:RedisLive",
    "rediss": "antiphon.stores.live.redis:RedisLive",
}

# Likewise: where all who share such a log count together what clients may ask for.
TILLS: dict[str, str] = {
    "redis": "antiphon.stores.live.redis_limits:RedisTill",
    "rediss": "antiphon.stores.live.redis_limits:RedisTill",
}


def live_log(address: str | None, store: Store, ttl: float) -> LiveLog:
    """The one that --live names, or the store's own. `ttl`: seconds that one beside it keeps what nobody drops."""
    log: LiveLog
    if address is None:
        log = load(WITH_STORE.get(store.name, WITH_STORE["local"]))(store)
    else:
        log = load(BY_ADDRESS[_scheme(address)])(address, ttl)
    return log


def till(address: str | None) -> Till | None:
    """None: nobody else is there to count with."""
    if address is None:
        return None
    found: Till = load(TILLS[_scheme(address)])(address)
    return found


def _scheme(address: str) -> str:
    scheme = address.partition("://")[0]
    if scheme not in BY_ADDRESS:
        raise StartupError(f"--live takes an address that begins with {' or '.join(f'{s}://' for s in BY_ADDRESS)}.")
    return scheme
