-- A name's first state, what was declared before, and the windows' slots in the log. Here lives what a call does that finds nothing of
-- the name, or other limits.

-- Each window has a slot of the log for as long as it lives; a new one gets the first that is free. What was there before is gone.
function Rules.give_slots(rules)
  if not LOG then return end
  local free = { true, true, true, true }
  for _, rule in ipairs(rules) do
    if rule.slot then free[rule.slot] = false end
  end
  Log.open()
  for slot = 1, #free do
    if free[slot] then Log.drop(slot, MOST - 1) end
  end
  local slot = 1
  for _, rule in ipairs(rules) do
    if rule.logs and not rule.slot then
      while not free[slot] do slot = slot + 1 end
      rule.slot, free[slot] = slot, false
    end
  end
end

function Rules.new(program, now)
  Who.count_waiters() -- an error, before anything is written, if it is not ours
  gate = { program = program, t = now, act = 0, fence = now, order = 0, ttl = 0 }
  gate.soonest, gate.held, gate.queued, gate.sweep, gate.cursor, gate.born, gate.waiting = 0, 0, 0, now, 0, 0, {}
  gate.sessions = 0
  gate.rules = Rules.parsed(program)
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  Rules.give_slots(gate.rules)
  redis.call('DEL', WHO)
  redis.call('HDEL', HASH, 'former')
end

-- What was declared before ----------------------------------------------------------------------------------------------------

-- Processes that keep declaring different limits must not make them flap. So of the last few limits that were replaced it is
-- remembered when, and by whose link: what another link has replaced is not taken again before HOLD, and what an update has
-- overruled, not as long as that holds. A link may replace what it has declared itself: the last entry says who has declared what holds.

local function own_link()
  return string.match(SESSION, '^[^.]+')
end

-- The entries, oldest first, and whether an update holds. As text: "0" or "1", then a line "moment link limits" each.
local function former_limits()
  local text, entries = redis.call('HGET', HASH, 'former') or '0', {}
  for t, link, program in string.gmatch(text, '\n(%d+) (%S+) ([^\n]+)') do
    entries[#entries + 1] = { t = tonumber(t), link = link, program = program }
  end
  return entries, string.sub(text, 1, 1) == '1'
end

-- Microseconds until the limits of this call may be declared, if they may not now; -1: not as long as an update holds.
function Rules.held()
  if args[4] == UPDATED then return nil end
  local entries, updated = former_limits()
  local link = own_link()
  for _, each in ipairs(entries) do
    if each.program == PROGRAM and updated then return -1 end
    local foreign = each.link ~= link and entries[#entries].link ~= link
    if each.program == PROGRAM and foreign and each.t + HOLD > gate.t then return each.t + HOLD - gate.t end
  end
  return nil
end

-- Remembers that the limits of this call have taken the place of `program`.
function Rules.replace(program)
  local updates, lines = args[4] == UPDATED, {}
  for _, each in ipairs((former_limits())) do
    if each.program ~= PROGRAM and each.program ~= program and (updates or each.t + HOLD > gate.t) then
      lines[#lines + 1] = State.int(each.t) .. ' ' .. each.link .. ' ' .. each.program
    end
  end
  if program ~= PROGRAM then lines[#lines + 1] = State.int(gate.t) .. ' ' .. own_link() .. ' ' .. program end
  while #lines > FORMER do table.remove(lines, 1) end
  redis.call('HSET', HASH, 'former', table.concat({ updates and '1' or '0', unpack(lines) }, '\n'))
end
