-- The index: which names are in use, and which processes use them. It is not part of the state of a
-- name: no call of a session reads or writes it.
--
-- A client refreshes its members about once a minute. Members that no client refreshes expire by
-- the server's clock, and so does the key.
--
-- KEYS  1... a sorted set: of names, or of labels (protocol/index.py). The scores are the moments
--         of expiry, in seconds. Of several sets, the first with room gets the members; the last
--         one always has room.
-- ARGV  1 lifetime       of the members that follow, in seconds
--       2... members
--
-- The reply is the number of the key that got them.

Index = {}

-- Redis keeps a sorted set of at most 128 members as a list, with a third of the memory.
local ROOM = 120

local function first_with_room(keys, now)
  for i = 1, #keys - 1 do
    redis.call('ZREMRANGEBYSCORE', keys[i], '-inf', now)
    if redis.call('ZCARD', keys[i]) < ROOM then return i end
  end
  return #keys
end

function Index.run(its_keys, its_args)
  local lifetime, now = tonumber(its_args[1]), math.floor(clock() / 1000000)
  local place = first_with_room(its_keys, now)
  local key = its_keys[place]
  for i = 2, #its_args do redis.call('ZADD', key, now + lifetime, its_args[i]) end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('PEXPIRE', key, lifetime * 1000)
  return place
end
