-- The state between two calls: its numbers in a row. It is written by every call, so what a rule was declared with is not in it:
-- the declaration stands beside it. How many sessions there are is not in it, either: only a state that is remembered knows.

Numbers.bucket = {}

function Numbers.bucket.of(rule)
  local marks = rule.marks
  if #marks == 0 then return rule.level, rule.at, rule.taken, rule.top end
  local flat = {}
  for i, mark in ipairs(marks) do flat[2 * i - 1], flat[2 * i] = mark[1], mark[2] end
  return rule.level, rule.at, rule.taken, rule.top, unpack(flat)
end

function Numbers.bucket.put(rule, level, at, taken, top, ...)
  rule.level, rule.at, rule.taken, rule.top, rule.marks = level, at, taken, top, {}
  local flat = { ... }
  for i = 1, #flat, 2 do rule.marks[#rule.marks + 1] = { flat[i], flat[i + 1] } end
end

Numbers.window = {}

function Numbers.window.of(rule)
  return rule.slot, rule.used, rule.first, rule.last, rule.pending, rule.wanted, rule.found, rule.gone
end

function Numbers.window.put(rule, slot, used, first, last, pending, wanted, found, gone)
  rule.slot, rule.used, rule.first, rule.last, rule.pending = slot, used, first, last, pending
  rule.wanted, rule.found, rule.gone = wanted, found, gone
end

Numbers.quota = {}

function Numbers.quota.of(rule)
  return rule.start, rule.used
end

function Numbers.quota.put(rule, start, used)
  rule.start, rule.used = start, used
end

Numbers.slots = {}

function Numbers.slots.of(rule)
  return rule.used
end

function Numbers.slots.put(rule, used)
  rule.used = used
end

-- All of it ------------------------------------------------------------------------------------------------------------------

local HEAD = '<Bdddddddddddd'

local layouts = {} -- by how many numbers there are

local function layout(count)
  if not layouts[count] then layouts[count] = '<B' .. string.rep('d', count) end
  return layouts[count]
end

local function packed(...)
  local count = select('#', ...)
  return struct.pack(layout(count), count, ...)
end

local function unpacked(text, from)
  local numbers = { struct.unpack(layout(string.byte(text, from)), text, from) }
  return table.remove(numbers), numbers
end

local known, states = {}, 0 -- what was written last, by its text: most of it is asked for again before long

function Numbers.remember(text)
  if states == REMEMBERED then known, states = {}, 0 end
  known[text], states = gate, states + 1
end

function Numbers.save()
  local text = struct.pack(HEAD, FORMAT, gate.t, gate.act, gate.booked, gate.fence, gate.order, gate.ttl, gate.soonest, gate.held,
    gate.queued, gate.sweep, gate.cursor, gate.born)
  for i, rule in ipairs(gate.rules) do text = text .. packed(gate.waiting[i], Numbers[rule.kind].of(rule)) end
  Numbers.remember(text)
  return text
end

-- Once: whoever takes it out will change it.
local function take_known(program, text)
  local state = known[text]
  if not state or state.program ~= program then return nil end
  known[text], states = nil, states - 1
  return state
end

-- False: it is of an older format, or its limits are damaged, and it is worth nothing. One of a newer format is left alone.
function Numbers.load(program, text)
  gate = take_known(program, text)
  if gate then return true end
  local format = string.byte(text) -- the first format had no number here, and began with one above 127
  if format > 127 then format = 1 end
  assert(format <= FORMAT, 'headgate: a newer version of headgate keeps the state of this name: update this one, too')
  if format < FORMAT or not Rules.sound(program) then return false end
  gate = { program = program, rules = Rules.parsed(program), waiting = {} }
  local _, at
  _, gate.t, gate.act, gate.booked, gate.fence, gate.order, gate.ttl, gate.soonest, gate.held, gate.queued, gate.sweep, gate.cursor,
    gate.born, at = struct.unpack(HEAD, text)
  for i, rule in ipairs(gate.rules) do
    local numbers
    at, numbers = unpacked(text, at)
    gate.waiting[i] = numbers[2]
    Numbers[rule.kind].put(rule, unpack(numbers, 3))
  end
  return true
end
