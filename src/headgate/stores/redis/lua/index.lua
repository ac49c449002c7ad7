-- The index: which names are in use, and which processes use them. It is apart from the states of
-- names: no call of a session reads or writes it.
--
-- A client refreshes its members about once a minute. Members that no client refreshes expire by
-- the server's clock, and so does the key.
--
-- KEYS  1 a sorted set: of names, or of labels (protocol/index.py). The scores are the moments of
--         expiry, in seconds.
-- ARGV  1 lifetime       of the members that follow, in seconds
--       2... members

Index = {}

function Index.run(its_keys, its_args)
  local key, lifetime = its_keys[1], tonumber(its_args[1])
  local now = math.floor(clock() / 1000000)
  for i = 2, #its_args do redis.call('ZADD', key, now + lifetime, its_args[i]) end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('PEXPIRE', key, lifetime * 1000)
end
