-- KEYS: buckets. ARGV: size, back, want, most for each of them. A missing bucket is full.
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
