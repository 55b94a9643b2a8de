"""Shared rate limit buckets in Redis or Valkey, by the clock of Redis, and the numbers of running responses.

antiphon:{tenant}:bucket:NAME     level and time, in one string; expires when the bucket would be full
antiphon:{tenant}:running:NAME    a hash: server → number of running responses, and until when that counts
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.stores.live.base import BucketGrant, BucketRequest
from antiphon.stores.live.redis import FAULTS, make_client

DEADLINE = 2.0  # seconds; a client is waiting for admission
COUNT_TTL_MS = 3_000  # milliseconds that a reported count is valid

# KEYS: buckets. ARGV: size, back, want, most for each of them. A missing bucket is full.
_EXCHANGE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local given = {}
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 4
  local size, back = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local want, most = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local level = size
  local kept = redis.call('GET', key)
  if kept then
    local before, since = string.match(kept, '^(%S+) (%S+)$')
    level = tonumber(before) + math.max(0, now - tonumber(since)) * size / 60000
  end
  level = math.min(size, math.min(size, level) + back)
  local taken = 0
  if want > 0 and level >= want then taken = math.min(level, math.max(want, most)) end
  level = level - taken
  if level < size then
    local full = math.ceil((size - level) / size * 60000) + 1000
    redis.call('SET', key, string.format('%.3f %.0f', level, now), 'PX', full)
  else
    redis.call('DEL', key)
  end
  given[i * 2 - 1], given[i * 2] = tostring(taken), tostring(level)
end
return given
"""

# KEYS: hashes. ARGV: client id, milliseconds, a count for each key.
_RUNNING = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local elsewhere = {}
for i, key in ipairs(KEYS) do
  local count = tonumber(ARGV[i + 2])
  if count > 0 then
    redis.call('HSET', key, ARGV[1], count .. ' ' .. string.format('%.0f', now + ARGV[2]))
    redis.call('PEXPIRE', key, ARGV[2])
  else
    redis.call('HDEL', key, ARGV[1])
  end
  local others, all = 0, redis.call('HGETALL', key)
  for j = 1, #all, 2 do
    local running, till = string.match(all[j + 1], '^(%S+) (%S+)$')
    if all[j] ~= ARGV[1] and tonumber(till) > now then others = others + tonumber(running) end
  end
  elsewhere[i] = others
end
return elsewhere
"""


class RedisLimits:
    """Rate limits shared through Redis."""

    name = "Redis"

    def __init__(self, url: str) -> None:
        self._redis = make_client(url)
        self._client_id = new_id("conn")
        self._exchange_script = self._redis.register_script(_EXCHANGE)
        self._running_script = self._redis.register_script(_RUNNING)

    async def exchange(self, tenant: str, requests: Sequence[BucketRequest]) -> list[BucketGrant]:
        keys = [f"antiphon:{{{tenant}}}:bucket:{request.name}" for request in requests]
        values: list[bytes | str | int | float] = []
        for request in requests:
            values += [request.size, request.back, request.want, request.most]
        async with _deadline():
            reply = [float(number) for number in await self._exchange_script(keys=keys, args=values)]
        return [BucketGrant(taken, remaining) for taken, remaining in zip(reply[::2], reply[1::2], strict=True)]

    async def report_running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        keys = [f"antiphon:{{{tenant}}}:running:{name}" for name in counts]
        async with _deadline():
            reply = await self._running_script(keys=keys, args=[self._client_id, COUNT_TTL_MS, *counts.values()])
        return dict(zip(counts, map(int, reply), strict=True))

    async def close(self) -> None:
        await self._redis.aclose()


@contextlib.asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except FAULTS as error:
        raise Unavailable("Redis does not answer.", retry_after=1.0) from error
