-- Forgets the state of an idle name, as if its TTL were over. No session calls it. A session that
-- is alive finds the state lost, and begins another session.
--
-- KEYS  1 HASH, 2 MEMBERS (prelude.lua)
--
-- The reply is how many permits are held, how many requests wait, and 1 if there was a state, else
-- 0. If any are held or wait, nothing is forgotten.

Forget = {}

function Forget.run(its_keys)
  begin(its_keys, {})
  local held, waiting = Membership.count_held(clock()), Membership.count_waiters()
  local state = redis.call('HGET', HASH, 'state')
  if held == 0 and waiting == 0 then redis.call('DEL', HASH, MEMBERS) end
  return { held, waiting, state and 1 or 0 }
end
