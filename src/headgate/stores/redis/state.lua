-- The state of one name in its keys: read at the start of a call, written at its end.
--
-- KEYS: 1 hash (limits, state, one "r" and one "m" field per session), 2 queue, 3 holders by lease end, 4 sessions by the moment
-- until which they are alive, 5-8 window logs. All numbers are integers and become text by int(), never by tostring (which loses
-- the microseconds of a moment).

local HASH, QUEUE, HOLDERS, SESSIONS, LOGS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], 4
local NEVER = 9007199254740992
local ONE_EACH = { requests = 1, permits = 1 }

local gate = { waiting = {} }
local touched = {}

local function int(number)
  return string.format('%.0f', number)
end

local function add(key, score, member)
  touched[key] = true
  redis.call('ZADD', key, score, member)
end

local function log_key(rule)
  return KEYS[LOGS + rule.slot]
end

-- A caller is "session:number:asked", and asked is "-" or "requests=3,tokens=900".
local function session_of(caller)
  return string.match(caller, '^[^:]+')
end

local units_seen = {}

local function parsed_units(text)
  local units = units_seen[text]
  if not units then
    units = {}
    for unit, number in string.gmatch(text, '([a-z0-9_]+)=(-?%d+)') do units[unit] = tonumber(number) end
    units_seen[text] = units
  end
  return units
end

local function units_of(caller)
  return parsed_units(string.match(caller, '[^:]+$'))
end

local costs_seen = {}

local function costs_of(units)
  local costs = costs_seen[units]
  if not costs then
    costs = {}
    for i, rule in ipairs(gate.rules) do costs[i] = units[rule.unit] or ONE_EACH[rule.unit] or 0 end
    costs_seen[units] = costs
  end
  return costs
end

local function forget_costs()
  costs_seen = {}
end

-- The queue -----------------------------------------------------------------------------------------------------------------

local queued -- its length, once known
local front, at = {}, 1 -- the callers at its head, and the first of them that is still there
local head_of_queue -- knows who is alive: sessions.lua

local function queue_length()
  if not queued then queued = redis.call('ZCARD', QUEUE) end
  return queued
end

local function first_in_queue()
  if not front[at] and queue_length() > 0 then front, at = redis.call('ZRANGE', QUEUE, 0, 63), 1 end
  return front[at]
end

local function queue_add(place, caller)
  queued = queue_length() + 1
  add(QUEUE, int(place), caller)
end

local function queue_remove(caller)
  if redis.call('ZREM', QUEUE, caller) == 0 then return false end
  if queued then queued = queued - 1 end
  if front[at] == caller then at = at + 1 else front, at = {}, 1 end
  return true
end

local function each_queued(see)
  local from = 0
  repeat
    local callers = redis.call('ZRANGE', QUEUE, from, from + 99)
    for _, caller in ipairs(callers) do see(caller) end
    from = from + 100
  until #callers < 100
end
