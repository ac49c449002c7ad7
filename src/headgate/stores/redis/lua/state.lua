-- The state between two calls: its numbers in a row, as MessagePack. Every call writes it, so the
-- declaration has a field of its own. The number of sessions is not written: only a remembered
-- state has it.
--
-- MessagePack writes small numbers in a byte and moments in nine. So moments that are mostly near
-- `t` are written as their distance from it.

State = {}

-- How many numbers come before those of the rules: without MEMBERS, so that no request waits or
-- holds; with MEMBERS; and with requests that wait.
local ALONE, HELD, QUEUED = 8, 12, 14
-- The last of the ALONE numbers has the flags: the sum of LARGE and QUEUE_EXISTS, if they are true,
-- and of AGE * tidy_age. With MEMBERS it is 1 + flags, so above 0. Without MEMBERS it is -flags.
local LARGE, QUEUE_EXISTS, AGE = 1, 2, 4

-- 1 more than the time since the name was tidied. 0: that was SESSION_LIFE ago, or longer.
local function tidy_age(t)
  local age = t - gate.tidied_at
  return age < SESSION_LIFE and age + 1 or 0
end

-- The distance of a moment from `t`; 0: there is no such moment. So distances from 0 on are written
-- as 1 more.
local function distance(moment, t)
  if moment == 0 then return 0 end
  return moment < t and moment - t or moment - t + 1
end

local function pack_gate(t)
  -- These three are mostly of the last grant, so they are near each other.
  local not_before, reserved = gate.not_before - t, gate.reserved - gate.not_before
  local fence = gate.fence - gate.not_before
  local keys_end, restarted_at, age = gate.keys_end - t, gate.restarted_at - t, tidy_age(t)
  local flags = (gate.large and LARGE or 0) + AGE * age
  if gate.members_end == 0 then
    return cmsgpack.pack(FORMAT, t, not_before, reserved, fence, keys_end, restarted_at, -flags)
  end
  local members_end, expiry = gate.members_end - t, distance(gate.next_expiry, t)
  -- While a search goes on, the moment of the next one is past.
  local sweep = gate.next_sweep > t and gate.next_sweep - t or -gate.sweep_cursor
  if gate.queued == 0 then
    return cmsgpack.pack(FORMAT, t, not_before, reserved, fence, keys_end, restarted_at,
      1 + flags, members_end, expiry, gate.held, sweep)
  end
  -- Queue.add gives out no place before `t`, so an earlier `last_place` need not be exact.
  local place = max(-1, gate.last_place - floor(t / PLACE))
  return cmsgpack.pack(FORMAT, t, not_before, reserved, fence, keys_end, restarted_at,
    1 + flags + QUEUE_EXISTS, members_end, expiry, gate.held, sweep, gate.queued, place)
end

-- Reads the numbers that only some states have. Returns how many come before those of the rules.
local function restore_gate(t, numbers)
  local members_exist = numbers[ALONE] > 0
  local flags = members_exist and numbers[ALONE] - 1 or -numbers[ALONE]
  local age = floor(flags / AGE)
  if age > 0 then gate.tidied_at = t - age + 1 end
  gate.large = flags % 2 == LARGE
  if not members_exist then return ALONE end
  local expiry, sweep = numbers[10], numbers[12]
  gate.members_end, gate.held = t + numbers[9], numbers[11]
  if expiry ~= 0 then gate.next_expiry = t + expiry - (expiry > 0 and 1 or 0) end
  if sweep > 0 then gate.next_sweep = t + sweep end
  if sweep < 0 then gate.sweep_cursor = -sweep end
  if flags % AGE < QUEUE_EXISTS then return HELD end
  gate.queued, gate.last_place = numbers[13], floor(t / PLACE) + numbers[14]
  return QUEUED
end

local function pack_rule(...)
  return cmsgpack.pack(select('#', ...), ...)
end

-- The last states, remembered by their texts. Mostly the next call needs one of them.
local known, states = {}, 0

function State.remember(text)
  if states == REMEMBERED then known, states = {}, 0 end
  known[text], states = gate, states + 1
end

local function write_log(field, rule)
  if rule.log == '' then
    redis.call('HDEL', HASH, field)
  else
    redis.call('HSET', HASH, field, rule.log)
  end
  rule.changed = false
end

function State.save()
  local t = gate.t
  local text = pack_gate(t)
  for i, rule in ipairs(gate.rules) do
    text = text .. pack_rule(gate.waiting[i], rule:numbers(t))
    if rule.changed then write_log('log' .. i, rule) end
  end
  State.remember(text)
  return text
end

-- Returns a remembered state. It is remembered no longer, because the call changes it.
local function take_known(program, text)
  local state = known[text]
  if not state or state.program ~= program then return nil end
  known[text], states = nil, states - 1
  return state
end

-- Returns whether there is such a state.
local function restore(program, text)
  local format = string.byte(text) -- the first format has no number, but a byte above 127
  if format > 127 then format = 1 end
  assert(format <= FORMAT,
    'headgate: a newer version of headgate keeps the state of this name: update this one, too')
  if format < FORMAT or not Limits.are_sound(program) then return false end
  local numbers = { cmsgpack.unpack(text) }
  local t = numbers[2]
  -- No state keeps the pause of the whole limiter (main.lua), so `not_before` is the end of the
  -- name's own pause, or the moment of the last grant. As `own_pause`, that moment delays nothing.
  local not_before = t + numbers[3]
  gate = { -- with all fields, because a table that grows costs more
    program = program, rules = Limits.parse(program), waiting = {}, t = t,
    not_before = not_before, own_pause = not_before, whole_pause = 0,
    reserved = not_before + numbers[4], fence = not_before + numbers[5], keys_end = t + numbers[6],
    restarted_at = t + numbers[7], members_end = 0, next_expiry = 0, held = 0, queued = 0,
    last_place = 0, next_sweep = 0, sweep_cursor = 0, tidied_at = 0, large = false,
  }
  local at = restore_gate(t, numbers) + 1
  for i, rule in ipairs(gate.rules) do
    local last = at + numbers[at]
    gate.waiting[i] = numbers[at + 1]
    rule:restore(t, unpack(numbers, at + 2, last))
    if rule.kind == 'window' then rule.log = redis.call('HGET', HASH, 'log' .. i) or '' end
    at = last + 1
  end
  return true
end

-- Returns false if the format is older or the limits are damaged: then the state counts as lost. A
-- newer format is an error, so that the state stays as it is.
function State.load(program, text)
  gate = take_known(program, text)
  if not gate and not restore(program, text) then return false end
  if is_long(text) then gate.large = true end
  return true
end
