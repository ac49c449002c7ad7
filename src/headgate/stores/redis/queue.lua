-- The queue, callers by place, and what a caller's name says of it.

local SOME = 1000 -- texts that are remembered

-- What is asked for, by its text: "-" or "requests=3,tokens=900".
local units_seen, units_known = {}, 0

function State.units_of(asked)
  local units = units_seen[asked]
  if not units then
    if units_known == SOME then units_seen, units_known = {}, 0 end
    units = {}
    for unit, number in string.gmatch(asked, '([a-z0-9_]+)=(-?%d+)') do units[unit] = tonumber(number) end
    units_seen[asked], units_known = units, units_known + 1
  end
  return units
end

local ONE_EACH = { requests = 1, permits = 1 }

-- The same as numbers, one for each rule: by declaration and text.
local costs_seen, costs_known = {}, 0

function State.costs_of(asked)
  local declared = gate.rules.declared
  local known = costs_seen[declared]
  if known and known[asked] then return known[asked] end
  if costs_known == SOME then costs_seen, costs_known, known = {}, 0, nil end
  if not known then
    known = {}
    costs_seen[declared] = known
  end
  local costs, units = {}, State.units_of(asked)
  for i, rule in ipairs(gate.rules) do costs[i] = units[rule.unit] or ONE_EACH[rule.unit] or 0 end
  known[asked], costs_known = costs, costs_known + 1
  return costs
end

-- A caller is "session:number:asked". Mostly several things are asked about one.
local caller_read, its_session, its_number, its_asked

local function read(caller)
  if caller ~= caller_read then
    caller_read, its_session, its_number, its_asked = caller, string.match(caller, '^([^:]*):([^:]*):(.*)$')
  end
end

function State.session_of(caller)
  read(caller)
  return its_session
end

function State.number_of(caller)
  read(caller)
  return its_number
end

function State.asked_of(caller)
  read(caller)
  return its_asked
end

-- The queue -----------------------------------------------------------------------------------------------------------------

local NOBODY = {}
local stretch
local front, at -- the callers at its head, and the first of them that is still there
local joining, passed -- who has come, and who has left the head; neither is written yet

function State.fresh()
  stretch, front, at, joining, passed = 3, NOBODY, 1, nil, nil
end

function State.queue_length()
  return gate.queued
end

function State.first_in_queue()
  if not front[at] and gate.queued > 0 then
    State.write_passed()
    front, at = Who.ranked(0, min(stretch, gate.queued) - 1), 1
    stretch = min(64, 4 * stretch) -- whoever needs more than the first few needs many
  end
  return front[at]
end

-- Behind all others; with the next write_queue.
function State.queue_add(callers, costs)
  joining = joining or {}
  Who.list_waiters(joining, callers, gate.order + 1)
  gate.order = gate.order + #callers
  Gate.join(#callers, costs)
end

-- Before all who were not granted anything yet; those who were stand in the order in which that was.
function State.queue_first(caller, fence, costs)
  local waiters = {}
  Who.list_waiters(waiters, { caller }, fence - MOST)
  Gate.join(Who.add_waiters(waiters), costs)
  front, at = NOBODY, 1
end

-- Those who came are written. Who was there already is counted once: all of them ask for the same.
function State.write_queue(costs)
  if not joining then return end
  local known = #joining / 2 - Who.add_waiters(joining)
  if known > 0 then Gate.join(-known, costs) end
  joining = nil
end

-- The first leaves, with the next write_passed.
function State.queue_pass()
  passed = passed or {}
  passed[#passed + 1] = front[at]
  at = at + 1
end

function State.write_passed()
  if passed then Who.drop_waiters(passed) end
  passed = nil
end

-- Returns how many were there.
function State.queue_remove(callers)
  local left = Who.drop_waiters(callers)
  if left == 1 and front[at] == callers[1] then at = at + 1 elseif left > 0 then front, at = NOBODY, 1 end
  return left
end
