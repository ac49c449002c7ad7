-- The limits that were replaced: processes that declare different limits must not make them flap.
--
-- The field `former` has the moment and the client of the last few replacements. The client that
-- replaced limits can declare them again at any time. So can the client of the last entry, which
-- has set the present limits. Any other client waits for HOLD. While an update holds, no client
-- can. Limits that only an update had set are forgotten first: no code declares them.

LimitsHistory = {}

-- How the present limits were set. AS_BOTH: by an update, and a process has declared them since.
local AS_DECLARED, AS_UPDATED, AS_BOTH = '0', '1', '2'

-- Returns the entries, oldest first, and how the present limits were set. An entry is a line
-- "moment client limits", or "+moment" if only an update had set it.
local function read()
  local text, entries = redis.call('HGET', HASH, 'former') or AS_DECLARED, {}
  for sign, t, client, program in string.gmatch(text, '\n(%+?)(%d+) (%S+) ([^\n]+)') do
    t = tonumber(t)
    entries[#entries + 1] = { updated = sign == '+', t = t, client = client, program = program }
  end
  return entries, string.sub(text, 1, 1)
end

-- Returns how long the limits of this call may not be declared yet. -1: not while an update holds.
-- nil: they may be declared now. `ours`: this client has set the present limits. Any other client
-- also waits while FORMER entries hold: there is no room to note the replacement.
function LimitsHistory.hold_time()
  if DECLARES == UPDATED then return nil end
  local entries, how = read()
  local client, declared, first_left = RequestId.client(SESSION), 0, nil
  local ours = entries[1] and entries[#entries].client == client
  for _, each in ipairs(entries) do
    local left = each.t + HOLD - gate.t
    if each.program == PROGRAM then
      if how ~= AS_DECLARED then return -1 end
      if ours or each.client == client or left <= 0 then return nil end
      return left
    end
    if left > 0 and not each.updated then
      declared, first_left = declared + 1, first_left or left
    end
  end
  if ours or declared < FORMER then return nil end
  return first_left
end

-- Returns the index of the entry to forget next. The last entry stays: it names the client of the
-- present limits.
local function least(entries)
  for i = 1, #entries - 1 do
    if entries[i].updated then return i end
  end
  return 1
end

local function shorten(entries)
  local last = entries[#entries]
  -- A last entry that only an update had set takes no room from declared limits.
  local room = FORMER + (last and last.updated and 1 or 0)
  while #entries > room do table.remove(entries, least(entries)) end
end

local function write(how, entries)
  local lines = { how }
  for _, each in ipairs(entries) do
    local sign = each.updated and '+' or ''
    lines[#lines + 1] = sign .. Numbers.text(each.t) .. ' ' .. each.client .. ' ' .. each.program
  end
  redis.call('HSET', HASH, 'former', table.concat(lines, '\n'))
end

-- Notes that the limits of this call replace `program`. Mostly these are the present limits. For an
-- update they may also be limits that its process declared before. A declaration drops entries
-- older than HOLD. An update keeps them: no process may declare them while it holds.
function LimitsHistory.replace(program)
  local entries, how = read()
  local is_update, kept = DECLARES == UPDATED, {}
  -- Whether a process has declared the limits of this call before: they hold now, or were replaced.
  local was_declared = gate.program == PROGRAM and how ~= AS_UPDATED
  -- The limits of this call leave the history, and `program` gets a new entry.
  for _, each in ipairs(entries) do
    if each.program == PROGRAM then
      was_declared = not each.updated
    elseif each.program ~= program and (is_update or each.t + HOLD > gate.t) then
      kept[#kept + 1] = each
    end
  end
  if program ~= PROGRAM then
    -- `program` was set by an update, and no process has declared it.
    local only_updated = program == gate.program and how == AS_UPDATED
    local client = RequestId.client(SESSION)
    kept[#kept + 1] = { updated = only_updated, t = gate.t, client = client, program = program }
  end
  shorten(kept)
  local as_update = was_declared and AS_BOTH or AS_UPDATED
  write(is_update and as_update or AS_DECLARED, kept)
end

-- A process declares limits that an update had set.
function LimitsHistory.confirm()
  local entries, how = read()
  if how == AS_UPDATED then write(AS_BOTH, entries) end
end
