-- Request ids, "session:number:asked", and the costs of requests.

RequestId = {}

local SOME = 1000 -- remembered texts

-- By `asked` (prelude.lua), the number of each unit in it.
local units_seen, units_known = {}, 0

function RequestId.units_of(asked)
  local units = units_seen[asked]
  if not units then
    if units_known == SOME then units_seen, units_known = {}, 0 end
    units = {}
    for unit, number in string.gmatch(asked, '([a-z0-9_]+)=(-?%d+)') do
      units[unit] = tonumber(number)
    end
    units_seen[asked], units_known = units, units_known + 1
  end
  return units
end

local ONE_EACH = { requests = 1, permits = 1 }

-- The cost for each rule, by declaration and `asked`.
local costs_seen, costs_known = {}, 0

function RequestId.costs_of(asked)
  local declared = gate.rules.declared
  local known = costs_seen[declared]
  if known and known[asked] then return known[asked] end
  if costs_known == SOME then costs_seen, costs_known, known = {}, 0, nil end
  if not known then
    known = {}
    costs_seen[declared] = known
  end
  local costs, units = {}, RequestId.units_of(asked)
  for i, rule in ipairs(gate.rules) do costs[i] = units[rule.unit] or ONE_EACH[rule.unit] or 0 end
  known[asked], costs_known = costs, costs_known + 1
  return costs
end

-- The last id that was read: mostly several functions ask about one.
local id_read, its_session, its_number, its_asked

local function read(id)
  if id ~= id_read then
    id_read, its_session, its_number, its_asked = id, string.match(id, '^([^:]*):([^:]*):(.*)$')
  end
end

-- The client of a session: its channel has that name.
function RequestId.client(session)
  return string.match(session, '^[^.]+')
end

function RequestId.session(id)
  read(id)
  return its_session
end

function RequestId.number(id)
  read(id)
  return its_number
end

function RequestId.costs(id)
  read(id)
  return RequestId.costs_of(its_asked)
end
