-- The log of a name's windows: one sorted set, in which each window has one of four ranges of scores, by its slot. What a score says is
-- known here and nowhere else. An entry is "score:cost", one for each moment. The last one is nobody's: so the log is never empty.

local BASES = { 0, -MOST, MOST, -NEVER } -- where the moments of each slot begin: all scores are within 2^53, so they are exact
local GLANCE, PAGE = 4, 100 -- mostly the first few are enough

local function score(slot, t)
  return State.int(BASES[slot] + t)
end

local function cost_of(entry)
  return tonumber(string.match(entry, ':(%d+)$'))
end

function Log.open()
  State.add(LOG, 'inf', 'end')
end

-- It keeps the TTL that it has; unless it was lost, and is made anew.
function Log.add(slot, t, cost)
  local its = score(slot, t)
  if redis.call('ZADD', LOG, its, its .. ':' .. State.int(cost), 'inf', 'end') == 2 then touch(LOG) end
end

-- Calls see(moment, cost) for each entry from t on, oldest first; returns true as soon as that does.
function Log.each(slot, t, see)
  local last, page = score(slot, MOST - 1), GLANCE
  while true do
    local entries = redis.call('ZRANGEBYSCORE', LOG, score(slot, t), last, 'WITHSCORES', 'LIMIT', 0, page)
    for i = 1, #entries, 2 do
      t = tonumber(entries[i + 1]) - BASES[slot]
      if see(t, cost_of(entries[i])) then return true end
    end
    if #entries < 2 * page then return false end
    t, page = t + 1, PAGE
  end
end

-- Gives back up to `cost` of the entry at t, if there is one. Returns how much.
function Log.give(slot, t, cost)
  local its = score(slot, t)
  local entry = redis.call('ZRANGEBYSCORE', LOG, its, its)[1]
  if not entry then return 0 end
  local there = cost_of(entry)
  redis.call('ZREM', LOG, entry)
  Log.add(slot, t, there - min(cost, there))
  return min(cost, there)
end

-- Forgets what was until t.
function Log.drop(slot, t)
  redis.call('ZREMRANGEBYSCORE', LOG, score(slot, 0), score(slot, t))
end
