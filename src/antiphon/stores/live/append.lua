-- KEYS: log, fence. ARGV: fence, number, entry id, batch, milliseconds, channel, message.
local fence, number = tonumber(ARGV[1]), tonumber(ARGV[2])
if fence < tonumber(redis.call('GET', KEYS[2]) or '0') then return 1 end
local length = redis.call('XLEN', KEYS[1])
if number > length then return 2 end
if number < length then
  local there = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
  if there[2][2] == ARGV[4] then return 0 end
  return 1
end
redis.call('XADD', KEYS[1], ARGV[3], 'b', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[5])
redis.call('PUBLISH', ARGV[6], ARGV[7])
return 0
