-- The log of a name's windows: one sorted set, with a range of scores for each of four slots. Only
-- this file knows the scores. An entry is "score:cost", one for each moment. The last one, "end",
-- belongs to no window: it keeps the log from being empty.

WindowLog = {}

local BASES = { 0, -MOST, MOST, -NEVER } -- within 2^53 all scores are exact
local GLANCE, PAGE = 4, 100

local function score(slot, t)
  return Numbers.text(BASES[slot] + t)
end

local function cost_of(entry)
  return tonumber(string.match(entry, ':(%d+)$'))
end

function WindowLog.open()
  mark_for_ttl(LOG)
  redis.call('ZADD', LOG, 'inf', 'end')
end

-- Two new members: `end` was missing, too. So the log was lost, and needs a new TTL.
function WindowLog.add(slot, t, cost)
  local its = score(slot, t)
  local entry = its .. ':' .. Numbers.text(cost)
  if redis.call('ZADD', LOG, its, entry, 'inf', 'end') == 2 then mark_for_ttl(LOG) end
end

-- Calls see(moment, cost) for each entry from t on. Returns true as soon as that does.
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

-- Takes up to `cost` from the entry at t, if there is one. Returns how much.
function WindowLog.give(slot, t, cost)
  local its = score(slot, t)
  local entry = redis.call('ZRANGEBYSCORE', LOG, its, its)[1]
  if not entry then return 0 end
  local there = cost_of(entry)
  local back = min(cost, there)
  redis.call('ZREM', LOG, entry)
  WindowLog.add(slot, t, there - back)
  return back
end

function WindowLog.drop(slot, t)
  redis.call('ZREMRANGEBYSCORE', LOG, score(slot, 0), score(slot, t))
end
