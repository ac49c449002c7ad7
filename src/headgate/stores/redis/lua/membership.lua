-- Waiters, holders and sessions: one sorted set with a range of scores for each. Only this file
-- knows the scores. One exception: a request that was granted, and waits again after a pause, has
-- the place `fence - MOST` from queue.lua.
--
--   member      score                           text
--   waiter      -2^52 + place                   session:number:asked
--               -2^53 + fence                   the same; it was granted before a pause delayed it
--   holder      -2^52 + 2^48 + end of lease     +session:number:asked
--   session     until when it is alive          session (no ":")
--
-- So the first ranks are the waiters', and the next ones the holders'. All scores are within 2^53,
-- so they are exact. The holders' scores stay below 0 until the year 2103.
--
-- For operators, a score also says since when its member waits or holds. A place is a moment
-- (queue.lua). A permit is held since a whole lease before its end. If the lease was renewed or
-- shortened, see `score_since`.

Membership = {}

local WAITERS = -MOST
local HOLDERS = WAITERS + 281474976710656
local LAST_WAITER, FIRST_HOLDER = Numbers.text(HOLDERS - 1), Numbers.text(HOLDERS)
local LAST_HOLDER = '-1'

function Membership.count()
  return redis.call('ZCARD', MEMBERS)
end

-- Redis keeps a small sorted set as a list. From some size on, that costs ten times as much as a
-- proper set. So one long member converts it at LARGE members, for good.
local LARGE, LONG = 16, string.rep('-', 65)

local function convert()
  if gate.converted or gate.queued + gate.held < LARGE then return end
  redis.call('ZADD', MEMBERS, 0, LONG)
  redis.call('ZREM', MEMBERS, LONG)
  gate.converted = true
end

local function add(...)
  if not members_stay then mark_for_ttl(MEMBERS) end
  local new = redis.call('ZADD', MEMBERS, ...)
  convert()
  return new
end

local function score_of(member)
  local score = redis.call('ZSCORE', MEMBERS, member)
  return score and tonumber(score)
end

function Membership.by_rank(from, to)
  return redis.call('ZRANGE', MEMBERS, from, to)
end

-- Calls see(member) for `count` members, from the rank `from` on.
function Membership.each(from, count, see)
  for first = from, from + count - 1, 100 do
    local members = Membership.by_rank(first, min(first + 99, from + count - 1))
    for _, member in ipairs(members) do see(member) end
  end
end

-- Waiters

function Membership.count_waiters()
  return redis.call('ZCOUNT', MEMBERS, '-inf', LAST_WAITER)
end

-- Appends to a list for add_waiters. `place` is that of the first request.
function Membership.append_waiters(list, ids, place)
  local count = #list
  for i = 1, #ids do
    list[count + 2 * i - 1], list[count + 2 * i] = Numbers.text(WAITERS + place + i - 1), ids[i]
  end
end

-- Returns how many are new. A request that is in the queue already keeps its place (S3).
function Membership.add_waiters(list)
  return add('NX', unpack(list))
end

-- Renames a waiter, which keeps its place. Returns whether it was in the queue.
function Membership.rename_waiter(id, new)
  local score = score_of(id)
  if not score then return false end
  redis.call('ZREM', MEMBERS, id)
  add(Numbers.text(score), new)
  return true
end

function Membership.remove_waiters(ids)
  return redis.call('ZREM', MEMBERS, unpack(ids))
end

-- Holders

-- The score of a holder whose lease was renewed or shortened. It also says since when the permit is
-- held, in the last 15 bits of the lease's end. To have these bits, the lease ends up to STEP
-- microseconds later. The first 3 choose a unit of time: 20 ms times a power of 8. The other 12 are
-- the moment of the grant, in that unit and modulo COUNT. The score is half a microsecond less than
-- a whole number, and all others are whole. Twin: held_since() of protocol/members.py.
local STEP, COUNT = 32768, 4096

local function score_since(lease_end, since)
  local scale, unit = 0, 20000
  since = max(0, min(since, lease_end))
  while lease_end + STEP - since >= COUNT * unit and scale < 7 do
    scale, unit = scale + 1, 8 * unit
  end
  local rest = COUNT * scale + floor(since / unit) % COUNT
  local t = lease_end + (rest - lease_end) % STEP
  return string.format('%.1f', HOLDERS + t - 0.5)
end

local function holder_score(lease_end, since)
  return since and score_since(lease_end, since) or Numbers.text(HOLDERS + lease_end)
end

local function lease_end_of(score)
  return ceil(tonumber(score) - HOLDERS)
end

function Membership.count_holders()
  return redis.call('ZCOUNT', MEMBERS, FIRST_HOLDER, LAST_HOLDER)
end

-- Counts the holders whose leases have not ended at `t`.
function Membership.count_held(t)
  return redis.call('ZCOUNT', MEMBERS, '(' .. Numbers.text(HOLDERS + t), LAST_HOLDER)
end

-- Appends to a list for add_holders. The permits are held since `since`, or since a whole lease
-- before `lease_end`.
function Membership.append_holders(list, ids, lease_end, since)
  local score, count = holder_score(lease_end, since), #list
  for i = 1, #ids do list[count + 2 * i - 1], list[count + 2 * i] = score, '+' .. ids[i] end
end

function Membership.add_holders(list)
  return add(unpack(list))
end

function Membership.remove_holders(ids)
  local holders = {}
  for i = 1, #ids do holders[i] = '+' .. ids[i] end
  return redis.call('ZREM', MEMBERS, unpack(holders))
end

function Membership.set_lease_end(id, lease_end, since)
  add(holder_score(lease_end, since), '+' .. id)
end

function Membership.lease_end(id)
  local score = score_of('+' .. id)
  return score and lease_end_of(score)
end

function Membership.first_lease_end()
  local first = redis.call(
    'ZRANGEBYSCORE', MEMBERS, FIRST_HOLDER, LAST_HOLDER, 'WITHSCORES', 'LIMIT', 0, 1)
  return first[2] and lease_end_of(first[2]) or 0
end

function Membership.expired_holders(t)
  local last = Numbers.text(HOLDERS + t)
  local ids = redis.call('ZRANGEBYSCORE', MEMBERS, FIRST_HOLDER, last, 'LIMIT', 0, CLEANUP)
  for i, holder in ipairs(ids) do ids[i] = string.sub(holder, 2) end
  return ids
end

function Membership.each_holder(see)
  local count = Membership.count_holders()
  Membership.each(gate.queued, count, function(holder) see(string.sub(holder, 2)) end)
end

-- Sessions

Membership.alive_until = score_of

function Membership.keep_alive(session, t)
  local new = add(Numbers.text(t), session)
  if gate.sessions then gate.sessions = gate.sessions + new end
end

function Membership.end_session(session, t)
  redis.call('ZADD', MEMBERS, 'XX', Numbers.text(t), session)
end

function Membership.alive_after(t, most)
  return redis.call('ZRANGEBYSCORE', MEMBERS, Numbers.text(t + 1), '+inf', 'LIMIT', 0, most)
end

function Membership.silent_since(t, most)
  return redis.call('ZRANGEBYSCORE', MEMBERS, 0, Numbers.text(t), 'LIMIT', 0, most)
end

function Membership.remove_session(session)
  local removed = redis.call('ZREM', MEMBERS, session)
  if gate.sessions then gate.sessions = gate.sessions - removed end
end

function Membership.drop_placeholder()
  redis.call('ZREM', MEMBERS, '-')
end
