-- The log of a name's windows: one sorted set, with four ranges of scores. Each window has a slot,
-- which is one of the ranges. Only this file knows the meaning of a score. An entry is
-- "score:cost", one for each moment. The last entry, "end", belongs to no window: it keeps the log
-- from being empty.

WindowLog = {}

-- Where the moments of each slot begin. All scores are within 2^53, so they are exact.
local BASES = { 0, -MOST, MOST, -NEVER }
local GLANCE, PAGE = 4, 100 -- mostly the first few entries are enough

local function score(slot, t)
  return Numbers.text(BASES[slot] + t)
end

local function cost_of(entry)
  return tonumber(string.match(entry, ':(%d+)$'))
end

function WindowLog.open()
  mark_created(LOG)
  redis.call('ZADD', LOG, 'inf', 'end')
end

-- The log keeps its TTL. Two new members mean that `end` was missing, too: the log was lost, and
-- needs a new TTL.
function WindowLog.add(slot, t, cost)
  local its = score(slot, t)
  local entry = its .. ':' .. Numbers.text(cost)
  if redis.call('ZADD', LOG, its, entry, 'inf', 'end') == 2 then mark_created(LOG) end
end

-- Calls see(moment, cost) for each entry from t on, oldest first. Returns true as soon as that
-- does.
function WindowLog.each(slot, t, see)
  local last, page = score(slot, MOST - 1), GLANCE
  while true do
    local from = score(slot, t)
    local entries = redis.call(
      'ZRANGEBYSCORE', LOG, from, last, 'WITHSCORES', 'LIMIT', 0, page)
    for i = 1, #entries, 2 do
      t = tonumber(entries[i + 1]) - BASES[slot]
      if see(t, cost_of(entries[i])) then return true end
    end
    if #entries < 2 * page then return false end
    t, page = t + 1, PAGE
  end
end

-- Returns up to `cost` of the entry at t, if there is one, and says how much.
function WindowLog.give(slot, t, cost)
  local its = score(slot, t)
  local entry = redis.call('ZRANGEBYSCORE', LOG, its, its)[1]
  if not entry then return 0 end
  local there = cost_of(entry)
  redis.call('ZREM', LOG, entry)
  WindowLog.add(slot, t, there - min(cost, there))
  return min(cost, there)
end

-- Drops all entries of a slot until t.
function WindowLog.drop(slot, t)
  redis.call('ZREMRANGEBYSCORE', LOG, score(slot, 0), score(slot, t))
end
