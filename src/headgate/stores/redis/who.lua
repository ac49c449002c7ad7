-- Who waits, who holds and which sessions there are: one sorted set, in which each has a range of scores of its own. What a score says
-- is known here and nowhere else: others speak of places, moments and ranks.
--
--   waiters     -2^52 + place                       session:number:asked
--               -2^53 + fence                       the same, granted before a pause that holds it
--   holders     -2^52 + 2^48 + end of the lease     +session:number:asked
--   sessions    the moment until which it is alive  session (no ":")
--
-- So the first ranks are the waiters', and the next the holders'. Scores are exact: within 2^53, and the holders' below 0 until 2103.

local WAITERS = -MOST
local HOLDERS = WAITERS + 281474976710656
local LAST_WAITER, FIRST_HOLDER, LAST_HOLDER = State.int(HOLDERS - 1), State.int(HOLDERS), '-1'

function Who.count()
  return redis.call('ZCARD', WHO)
end

-- Redis keeps a small sorted set as a list, and walks it from the front for each member that is added: for a crowd that costs ten times
-- as much as a proper set does. A member that is too long for such a list makes one of it, for good.
local CROWD, LONG = 16, string.rep('-', 65)

local function spread()
  if gate.spread or gate.queued + gate.held < CROWD then return end
  redis.call('ZADD', WHO, 0, LONG)
  redis.call('ZREM', WHO, LONG)
  gate.spread = true
end

local function add(...)
  if not lasts then touch(WHO) end
  local new = redis.call('ZADD', WHO, ...)
  spread()
  return new
end

function Who.ranked(from, to)
  return redis.call('ZRANGE', WHO, from, to)
end

-- Calls see(member) for `count` of them from a rank on.
function Who.each(from, count, see)
  for first = from, from + count - 1, 100 do
    for _, member in ipairs(Who.ranked(first, min(first + 99, from + count - 1))) do see(member) end
  end
end

-- Waiters ------------------------------------------------------------------------------------------------------------------------

function Who.count_waiters()
  return redis.call('ZCOUNT', WHO, '-inf', LAST_WAITER)
end

-- Puts waiters on a list for add_waiters, from a place on.
function Who.list_waiters(waiters, callers, place)
  local count = #waiters
  for i = 1, #callers do waiters[count + 2 * i - 1], waiters[count + 2 * i] = State.int(WAITERS + place + i - 1), callers[i] end
end

-- All at once: one by one they would cost more than all the rest. Returns how many are new.
function Who.add_waiters(waiters)
  return add('NX', unpack(waiters)) -- who is there already keeps the place (S3)
end

-- Returns how many were there.
function Who.drop_waiters(callers)
  return redis.call('ZREM', WHO, unpack(callers))
end

-- Holders ------------------------------------------------------------------------------------------------------------------------

function Who.count_holders()
  return redis.call('ZCOUNT', WHO, FIRST_HOLDER, LAST_HOLDER)
end

-- Puts holders on a list for add_holders.
function Who.list_holders(holders, callers, lease_end)
  local score, count = State.int(HOLDERS + lease_end), #holders
  for i = 1, #callers do holders[count + 2 * i - 1], holders[count + 2 * i] = score, '+' .. callers[i] end
end

-- Returns how many are new.
function Who.add_holders(holders)
  return add(unpack(holders))
end

-- Returns how many were there.
function Who.drop_holders(callers)
  local holders = {}
  for i = 1, #callers do holders[i] = '+' .. callers[i] end
  return redis.call('ZREM', WHO, unpack(holders))
end

function Who.prolong(caller, lease_end)
  add(State.int(HOLDERS + lease_end), '+' .. caller)
end

function Who.lease_end(caller)
  local score = redis.call('ZSCORE', WHO, '+' .. caller)
  return score and tonumber(score) - HOLDERS
end

function Who.first_end()
  local first = redis.call('ZRANGEBYSCORE', WHO, FIRST_HOLDER, LAST_HOLDER, 'WITHSCORES', 'LIMIT', 0, 1)
  return first[2] and tonumber(first[2]) - HOLDERS or 0
end

-- The holders whose leases have ended at t.
function Who.ended(t)
  local callers = redis.call('ZRANGEBYSCORE', WHO, FIRST_HOLDER, State.int(HOLDERS + t), 'LIMIT', 0, CLEANUP)
  for i, holder in ipairs(callers) do callers[i] = string.sub(holder, 2) end
  return callers
end

function Who.each_holder(see)
  Who.each(gate.queued, Who.count_holders(), function(holder) see(string.sub(holder, 2)) end)
end

-- Sessions -----------------------------------------------------------------------------------------------------------------------

function Who.alive_until(session)
  local score = redis.call('ZSCORE', WHO, session)
  return score and tonumber(score)
end

function Who.keep_alive(session, t)
  local new = add(State.int(t), session)
  if gate.sessions then gate.sessions = gate.sessions + new end
end

-- No longer than until t, if it is there.
function Who.end_session(session, t)
  redis.call('ZADD', WHO, 'XX', State.int(t), session)
end

function Who.alive_at(t, most)
  return redis.call('ZRANGEBYSCORE', WHO, State.int(t + 1), '+inf', 'LIMIT', 0, most)
end

function Who.silent_since(t, most)
  return redis.call('ZRANGEBYSCORE', WHO, 0, State.int(t), 'LIMIT', 0, most)
end

function Who.drop_session(session)
  local gone = redis.call('ZREM', WHO, session)
  if gate.sessions then gate.sessions = gate.sessions - gone end
end
