-- The server's clock, read once per call (TIME moves inside a script before Redis 7.2), in integer microseconds.

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
