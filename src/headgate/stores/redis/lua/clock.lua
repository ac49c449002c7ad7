-- The server's clock in microseconds. A call reads it once, because before Redis 7.2 the clock goes
-- on while a script runs.

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
