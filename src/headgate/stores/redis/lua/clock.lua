-- The server's clock in microseconds. A call reads it once: before Redis 7.2 it moves in a script.

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
