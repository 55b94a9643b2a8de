"""The programs whose requests have arrived in this process, by tenant: the latest of each, without contents.

The feed shows stored responses only, and most clients store none.
"""

from collections.abc import Callable
from time import time
from typing import TypeVar

from antiphon.protocol.types.operations.clients import UserAgentState

K = TypeVar("K")
V = TypeVar("V")

_MAX_TENANTS = 1000
_MAX_USER_AGENTS = 20  # of a tenant; the one that was silent for the longest time is forgotten
_MAX_CHARACTERS = 200


class UserAgentLog:
    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._tenants: dict[str, dict[bytes, UserAgentState]] = {}

    def record(self, tenant: str, header: bytes, route: str) -> UserAgentState:
        """Count a request that has arrived. Its status is set at its end."""
        states = _move_to_end(self._tenants, tenant, dict, _MAX_TENANTS)
        header = header[:_MAX_CHARACTERS]
        state = _move_to_end(states, header, lambda: _make_state(header), _MAX_USER_AGENTS)
        state.requests += 1
        state.last_at, state.route, state.status = self._clock(), route, 0
        return state

    def list_states(self, tenant: str) -> list[UserAgentState]:
        """Return the programs of a tenant, the latest first."""
        return [*reversed(self._tenants.get(tenant, {}).values())]


def _make_state(header: bytes) -> UserAgentState:
    return UserAgentState(user_agent=header.decode("ascii", "replace"))


def _move_to_end(table: dict[K, V], name: K, make: Callable[[], V], limit: int) -> V:
    """Return an entry, which becomes the latest; the oldest one is removed if there are too many."""
    table[name] = entry = table.pop(name, None) or make()
    if len(table) > limit:
        del table[next(iter(table))]
    return entry
