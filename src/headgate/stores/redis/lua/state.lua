-- The state between two calls: its numbers in a row, as MessagePack. Every call writes it, so the
-- declaration has a field of its own. The number of sessions is not in the text, only in `known`.
--
-- MessagePack writes small numbers in a byte and moments in nine. So moments that are mostly near
-- `t` are written as their distance from it.

State = {}

-- How many numbers `head` writes: without MEMBERS, and with it. Without MEMBERS no request waits or
-- holds, so the other numbers are 0.
local ALONE, HEAD = 8, 14

local function head(t)
  local not_before, reserved, fence = gate.not_before - t, gate.reserved - t, gate.fence - t
  local keys_end, restarted_at = gate.keys_end - t, gate.restarted_at - t
  if gate.members_end == 0 then
    return cmsgpack.pack(FORMAT, t, not_before, reserved, fence, keys_end, restarted_at, 0)
  end
  return cmsgpack.pack(FORMAT, t, not_before, reserved, fence, keys_end, restarted_at,
    gate.members_end, gate.last_place, gate.next_expiry, gate.held, gate.queued, gate.next_sweep,
    gate.sweep_cursor)
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
  local text = head(t)
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

-- Returns false if the format is older or the limits are damaged: then the state counts as lost. A
-- newer format is an error, so that the state stays as it is.
function State.load(program, text)
  gate = take_known(program, text)
  if gate then return true end
  local format = string.byte(text) -- the first format has no number, but a byte above 127
  if format > 127 then format = 1 end
  assert(format <= FORMAT,
    'headgate: a newer version of headgate keeps the state of this name: update this one, too')
  if format < FORMAT or not Limits.are_sound(program) then return false end
  gate = { program = program, rules = Limits.parse(program), waiting = {} }
  local numbers = { cmsgpack.unpack(text) }
  local t = numbers[2]
  gate.t, gate.not_before, gate.reserved = t, t + numbers[3], t + numbers[4]
  gate.fence = t + numbers[5]
  gate.keys_end, gate.restarted_at, gate.members_end = t + numbers[6], t + numbers[7], numbers[8]
  local at
  if gate.members_end == 0 then
    gate.last_place, gate.next_expiry, gate.held, gate.queued = 0, 0, 0, 0
    gate.next_sweep, gate.sweep_cursor, at = 0, 0, ALONE + 1
  else
    gate.last_place, gate.next_expiry, gate.held, gate.queued, gate.next_sweep, gate.sweep_cursor =
      unpack(numbers, ALONE + 1, HEAD)
    at = HEAD + 1
  end
  -- No state keeps the pause of the whole limiter (main.lua), so `not_before` is the end of the
  -- name's own pause, or the moment of the last grant. As `own_pause`, that moment delays nothing.
  gate.own_pause, gate.whole_pause = gate.not_before, 0
  for i, rule in ipairs(gate.rules) do
    local last = at + numbers[at]
    gate.waiting[i] = numbers[at + 1]
    rule:restore(t, unpack(numbers, at + 2, last))
    if rule.kind == 'window' then rule.log = redis.call('HGET', HASH, 'log' .. i) or '' end
    at = last + 1
  end
  return true
end
