-- Sessions, holders and mail: who asks, who is alive, who holds what until when, and what was granted behind somebody's back.
--
-- A session is one event loop's talk about one name. It numbers its calls, and its last reply is kept: a call that arrives twice
-- is answered from there, one that arrives after a later one changes nothing (S3, T10). A session that waits and falls silent for
-- WAITER loses its places (L3).

local PROGRAM, DECLARES, SESSION, CALL = ARGV[1], ARGV[2] == '1', ARGV[3], tonumber(ARGV[4])
local WAITS, HORIZON = ARGV[5] == '1', tonumber(ARGV[6])
local WAITER, KEEP, CLEANUP = 10000000, 30000000, 100

local alive_seen = { [SESSION] = true }

local function alive(session)
  local known = alive_seen[session]
  if known == nil then
    local score = redis.call('ZSCORE', SESSIONS, session)
    known = score ~= false and tonumber(score) > gate.t
    alive_seen[session] = known
  end
  return known
end

-- Mail: grants that other sessions' calls made for this one, "number moment fence" by number.

local own_mail, others_mail = {}, {}

local function read_mail(text)
  for number, t, fence in string.gmatch(text or '', '(%d+) (%-?%d+) (%d+)') do own_mail[number] = { t, fence } end
end

local function deliver(caller, t, fence)
  local session, number = string.match(caller, '^([^:]+):(%d+)')
  if session == SESSION then
    own_mail[number] = { int(t), int(fence) }
  else
    local mail = others_mail[session] or {}
    others_mail[session] = mail
    mail[#mail + 1] = number .. ' ' .. int(t) .. ' ' .. int(fence)
  end
end

-- Holders ---------------------------------------------------------------------------------------------------------------------

local function lease()
  local shortest
  for _, rule in ipairs(gate.rules) do
    if rule.lease then shortest = math.min(shortest or rule.lease, rule.lease) end
  end
  return shortest
end

local function hold(caller, t)
  local time = lease()
  if time then
    add(HOLDERS, int(t + time), caller)
    if gate.soonest == 0 or t + time < gate.soonest then gate.soonest = t + time end
  end
end

-- Returns what leases ended with; `soonest` is a lower bound of the next end, since renewals only move it on.
local function expire_holders()
  if gate.soonest == 0 or gate.soonest > gate.t then return end
  local ended = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', int(gate.t), 'LIMIT', 0, CLEANUP)
  for _, caller in ipairs(ended) do
    redis.call('ZREM', HOLDERS, caller)
    Gate.release(units_of(caller))
  end
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  gate.soonest = first[2] and tonumber(first[2]) or 0
end

local function renew(caller)
  local score = redis.call('ZSCORE', HOLDERS, caller)
  if not score or tonumber(score) <= gate.t then return false end
  add(HOLDERS, int(gate.t + lease()), caller)
  return true
end

-- The head of the queue, past those who are dead and those whose cost no limit holds any more (they are told: moment -1).
function head_of_queue()
  for _ = 1, CLEANUP do
    local caller = first_in_queue()
    if not caller then return nil end
    local never = false
    for i, cost in ipairs(costs_of(units_of(caller))) do never = never or cost > gate.rules[i].capacity end
    local dead = not alive(session_of(caller))
    if not dead and not never then return caller end
    Gate.leave(caller)
    if not dead then deliver(caller, -1, 0) end
  end
  return nil
end

-- Walks the queue for dead waiters, a stretch each call, once in WAITER: a count of waiters is a count of live ones.
local function sweep_queue()
  if gate.sweep > gate.t then return end
  local callers = redis.call('ZRANGE', QUEUE, int(gate.cursor), int(gate.cursor + CLEANUP - 1))
  for _, caller in ipairs(callers) do
    if alive(session_of(caller)) then gate.cursor = gate.cursor + 1 else Gate.leave(caller) end
  end
  if #callers < CLEANUP then gate.sweep, gate.cursor = gate.t + WAITER, 0 end
end

-- Stay alive, and forget sessions that have been silent for long.
local function attend(until_moment)
  if until_moment >= gate.t + 0.75 * WAITER then return until_moment end
  add(SESSIONS, int(gate.t + WAITER), SESSION)
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', SESSIONS, '-inf', int(gate.t - KEEP), 'LIMIT', 0, CLEANUP)) do
    redis.call('ZREM', SESSIONS, session)
    redis.call('HDEL', HASH, 'r' .. session, 'm' .. session)
  end
  return gate.t + WAITER
end
