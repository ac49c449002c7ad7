-- A name's first state, what was declared before, and the windows' slots in the log. Here lives what a call does that finds nothing of
-- the name, or other limits.

-- Each window has a slot of the log for as long as it lives; a new one gets the first that is free. What was there before is gone.
function Rules.give_slots(rules)
  local free, logs = { true, true, true, true }, false
  for _, rule in ipairs(rules) do
    if rule.slot then free[rule.slot] = false end
    logs = logs or rule.logs
  end
  if not logs then return end
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
  gate = { program = program, t = now, act = 0, booked = 0, fence = now, order = 0, ttl = 0 }
  gate.soonest, gate.held, gate.queued, gate.sweep, gate.cursor, gate.born, gate.waiting = 0, 0, 0, now, 0, 0, {}
  gate.sessions = 0
  gate.rules = Rules.parsed(program)
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  Rules.give_slots(gate.rules)
  redis.call('DEL', WHO)
  redis.call('HDEL', HASH, 'former', 'offer', 'limits')
end

-- What was declared before ----------------------------------------------------------------------------------------------------

-- Processes that keep declaring different limits must not make them flap. So of the last few limits that were replaced it is
-- remembered when, and by whose link: what another link has replaced is not taken again before HOLD, and what an update has
-- overruled, not as long as that holds. A link may replace what it has declared itself: the last entry says who has declared what holds.
-- What only an update has set is the first to be forgotten: no program declares it.

local AS_DECLARED, AS_UPDATED, AS_BOTH = '0', '1', '2' -- how the limits came that hold

local function own_link()
  return string.match(SESSION, '^[^.]+')
end

-- The entries, oldest first, and how the present limits came. As text: that, then a line "moment link limits" each, "+moment" if only an
-- update had set them.
local function former_limits()
  local text, entries = redis.call('HGET', HASH, 'former') or AS_DECLARED, {}
  for sign, t, link, program in string.gmatch(text, '\n(%+?)(%d+) (%S+) ([^\n]+)') do
    entries[#entries + 1] = { updated = sign == '+', t = tonumber(t), link = link, program = program }
  end
  return entries, string.sub(text, 1, 1)
end

-- Microseconds until the limits of this call may be declared, if they may not now; -1: not as long as an update holds. Those that are new
-- wait when there is no room to remember what they would replace: more programs disagree than are remembered.
function Rules.held()
  if args[4] == UPDATED then return nil end
  local entries, how = former_limits()
  local link, declared, first = own_link(), 0, nil
  local ours = entries[1] and entries[#entries].link == link
  for _, each in ipairs(entries) do
    local left = each.t + HOLD - gate.t
    if each.program == PROGRAM and how ~= AS_DECLARED then return -1 end
    if each.program == PROGRAM then return not ours and each.link ~= link and left > 0 and left or nil end
    if left > 0 and not each.updated then declared, first = declared + 1, first or left end
  end
  return not ours and declared >= FORMER and first or nil
end

-- Which entry is forgotten first: never the last one, see above.
local function least(entries)
  for i = 1, #entries - 1 do
    if entries[i].updated then return i end
  end
  return 1
end

local function shorten(entries)
  local last = entries[#entries]
  local room = FORMER + (last and last.updated and 1 or 0)
  while #entries > room do table.remove(entries, least(entries)) end
end

local function write_former(how, entries)
  local lines = { how }
  for _, each in ipairs(entries) do
    lines[#lines + 1] = (each.updated and '+' or '') .. State.int(each.t) .. ' ' .. each.link .. ' ' .. each.program
  end
  redis.call('HSET', HASH, 'former', table.concat(lines, '\n'))
end

-- Remembers that the limits of this call have taken the place of `program`.
function Rules.replace(program)
  local entries, how = former_limits()
  local updates, kept, declared = args[4] == UPDATED, {}, gate.program == PROGRAM and how ~= AS_UPDATED
  for _, each in ipairs(entries) do
    if each.program == PROGRAM then
      declared = not each.updated
    elseif each.program ~= program and (updates or each.t + HOLD > gate.t) then
      kept[#kept + 1] = each
    end
  end
  if program ~= PROGRAM then
    local updated = program == gate.program and how == AS_UPDATED
    kept[#kept + 1] = { updated = updated, t = gate.t, link = own_link(), program = program }
  end
  shorten(kept)
  write_former(not updates and AS_DECLARED or declared and AS_BOTH or AS_UPDATED, kept)
end

-- What holds is declared: by an update alone it does so no more.
function Rules.confirm()
  local entries, how = former_limits()
  if how == AS_UPDATED then write_former(AS_BOTH, entries) end
end
