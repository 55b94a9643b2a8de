-- KEYS: hashes. ARGV: client id, milliseconds, a count for each key.
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
