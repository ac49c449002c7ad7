-- The state between two calls: its numbers in a row. Every call writes it, so the declaration has a
-- field of its own. The number of sessions is not in the text, only in `known`.

State = {}

local HEAD = '<Bdddddddddddd'

local layouts = {} -- by the count of numbers

local function layout(count)
  if not layouts[count] then layouts[count] = '<B' .. string.rep('d', count) end
  return layouts[count]
end

local function pack(...)
  local count = select('#', ...)
  return struct.pack(layout(count), count, ...)
end

-- The last states by their texts. Mostly the next call reads one of them.
local known, states = {}, 0

function State.remember(text)
  if states == REMEMBERED then known, states = {}, 0 end
  known[text], states = gate, states + 1
end

function State.save()
  local text = struct.pack(HEAD, FORMAT, gate.t, gate.not_before, gate.reserved, gate.fence,
    gate.last_place, gate.keys_end, gate.next_expiry, gate.held, gate.queued, gate.next_sweep,
    gate.sweep_cursor, gate.restarted_at)
  for i, rule in ipairs(gate.rules) do
    text = text .. pack(gate.waiting[i], rule:numbers()) .. (rule.tail or '')
    if rule.changed then
      redis.call('HSET', HASH, 'log' .. i, rule.log)
      rule.changed = false
    end
  end
  State.remember(text)
  return text
end

-- A state is taken out, because the call changes it.
local function take_known(program, text)
  local state = known[text]
  if not state or state.program ~= program then return nil end
  known[text], states = nil, states - 1
  return state
end

-- Returns false if the format is older, or the limits are damaged. A newer format is an error: the
-- state stays as it is.
function State.load(program, text)
  gate = take_known(program, text)
  if gate then return true end
  local format = string.byte(text) -- the first format has no number, but a byte above 127
  if format > 127 then format = 1 end
  assert(format <= FORMAT,
    'headgate: a newer version of headgate keeps the state of this name: update this one, too')
  if format < FORMAT or not Limits.are_sound(program) then return false end
  gate = { program = program, rules = Limits.parse(program), waiting = {} }
  local _, at
  _, gate.t, gate.not_before, gate.reserved, gate.fence, gate.last_place, gate.keys_end,
    gate.next_expiry, gate.held, gate.queued, gate.next_sweep, gate.sweep_cursor,
    gate.restarted_at, at = struct.unpack(HEAD, text)
  gate.own_pause, gate.whole_pause = gate.not_before, 0
  for i, rule in ipairs(gate.rules) do
    local numbers = { struct.unpack(layout(string.byte(text, at)), text, at) }
    at = table.remove(numbers) -- where the next rule begins
    gate.waiting[i] = numbers[2]
    rule:restore(unpack(numbers, 3))
    if rule.kind == 'window' then
      local size = numbers[#numbers]
      rule.tail, at = string.sub(text, at, at + size - 1), at + size
      rule.log = redis.call('HGET', HASH, 'log' .. i) or ''
    end
  end
  return true
end
