-- The queue, callers by place, and what a caller's name says of it.

local units_seen, costs_seen, callers_seen -- by text, by units, and by name

function State.parsed_units(text)
  local units = units_seen[text]
  if not units then
    units = {}
    for unit, number in string.gmatch(text, '([a-z0-9_]+)=(-?%d+)') do units[unit] = tonumber(number) end
    units_seen[text] = units
  end
  return units
end

-- A caller is "session:number:asked", and asked is "-" or "requests=3,tokens=900".
local function parsed(caller)
  local parts = callers_seen[caller]
  if not parts then
    local session, number, asked = string.match(caller, '^([^:]*):([^:]*):(.*)$')
    parts = { session = session, number = number, units = State.parsed_units(asked) }
    callers_seen[caller] = parts
  end
  return parts
end

function State.session_of(caller)
  return parsed(caller).session
end

function State.number_of(caller)
  return parsed(caller).number
end

function State.units_of(caller)
  return parsed(caller).units
end

local ONE_EACH = { requests = 1, permits = 1 }

function State.costs_of(units)
  local costs = costs_seen[units]
  if not costs then
    costs = {}
    for i, rule in ipairs(gate.rules) do costs[i] = units[rule.unit] or ONE_EACH[rule.unit] or 0 end
    costs_seen[units] = costs
  end
  return costs
end

function State.forget_costs()
  costs_seen = {}
end

-- The queue -----------------------------------------------------------------------------------------------------------------

local stretch
local front, at -- the callers at its head, and the first of them that is still there
local joining -- who has come, and is not written yet

function State.fresh()
  units_seen, costs_seen, callers_seen = {}, {}, {}
  stretch, front, at, joining = 2, {}, 1, {}
end

function State.queue_length()
  return gate.queued
end

function State.first_in_queue()
  if not front[at] and gate.queued > 0 then
    front, at = Who.ranked(0, min(stretch, gate.queued - 1)), 1
    stretch = 63 -- whoever needs more than the first few needs many
  end
  return front[at]
end

-- Behind all others; with the next write_queue.
function State.queue_add(callers, costs)
  for _, caller in ipairs(callers) do
    gate.order = gate.order + 1
    Who.list_waiter(joining, caller, gate.order)
  end
  Gate.count_waiters(#callers, costs)
end

-- Those who came are written. Who was there already is counted once: all of them ask for the same.
function State.write_queue(costs)
  if #joining == 0 then return end
  local known = #joining / 2 - Who.add_waiters(joining)
  if known > 0 then Gate.count_waiters(-known, costs) end
  joining = {}
end

function State.queue_remove(caller)
  if not Who.drop_waiter(caller) then return false end
  if front[at] == caller then at = at + 1 else front, at = {}, 1 end
  return true
end
