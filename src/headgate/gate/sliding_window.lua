-- The exact sliding window. Twin: sliding_window.py; the reasons stand there.
--
-- The latest entry stays in the state (last, pending) until a later one follows, so that grants of
-- one moment are one write. `first` is the oldest moment in the log; 0: there is none. `slot` is the
-- window's range of the log (setup.lua).

local SlidingWindowRule = { kind = 'window', holds = false, logs = true }
local STRIDE = 100

function SlidingWindowRule.new(unit, numbers)
  return { unit = unit, capacity = numbers[1], per = numbers[2] }
end

function SlidingWindowRule.open(rule, t)
  -- A new rule has no slot, and so no log.
  if rule.slot then WindowLog.drop(rule.slot, MOST - 1) end
  rule.used, rule.first, rule.last, rule.pending = 0, 0, 0, 0
  rule.wanted, rule.found, rule.gone = 0, 0, 0
end

-- Calls see(moment, cost) for each entry until that returns true.
function SlidingWindowRule.each(rule, see)
  if rule.first > 0 and WindowLog.each(rule.slot, rule.first, see) then return end
  if rule.last > 0 then see(rule.last, rule.pending) end
end

-- The log was lost: only its present entries count.
function SlidingWindowRule.recount(rule)
  rule.used, rule.wanted = 0, 0
  rule:each(function(_, cost) rule.used = rule.used + cost end)
end

function SlidingWindowRule.refresh(rule, t)
  -- If all of it has expired, the entries need no look.
  if rule.first > 0 and rule.last + rule.per <= t then
    WindowLog.drop(rule.slot, rule.last)
    rule.gone = rule.last + rule.per
    rule.used, rule.first, rule.last, rule.pending = 0, 0, 0, 0
  end
  -- `whole`: the log still has its oldest entry. Otherwise entries were lost.
  if rule.first > 0 and rule.first + rule.per <= t then
    local gone, first, whole = 0, 0, false
    -- `each` ends with `last`, the entry of the state. If only that stays, `first` becomes 0.
    rule:each(function(moment, cost)
      whole = whole or moment == rule.first
      if moment == rule.last or moment + rule.per > t then
        first = moment ~= rule.last and moment or 0
        return true
      end
      gone = moment
      rule.used = rule.used - cost
    end)
    if gone > 0 then WindowLog.drop(rule.slot, gone) end
    rule.gone = max(rule.gone, gone + rule.per)
    rule.first = first
    if not whole then rule:recount() end
  end
  if rule.first == 0 and rule.last > 0 and rule.last + rule.per <= t then
    rule.used = rule.used - rule.pending
    rule.gone = rule.last + rule.per
    rule.last, rule.pending = 0, 0
  end
end

function SlidingWindowRule.freed(rule, need)
  local free = 0
  rule:each(function(moment, cost)
    free = moment
    need = need - cost
    return need <= 0
  end)
  return free + rule.per
end

-- A cache: `freed` returned the moment `found` for the cost `wanted`. A new entry clears it (0); an
-- entry that expires does not change the moment. Without it, each call would read the log again for
-- a large cost at the head of the queue.
function SlidingWindowRule.ready(rule, cost, t)
  local need = rule.used + cost - rule.capacity
  if need <= 0 then return t end
  if rule.wanted ~= cost then rule.wanted, rule.found = cost, rule:freed(need) end
  return max(t, rule.found)
end

function SlidingWindowRule.take(rule, cost, t)
  rule:refresh(t)
  if rule.last > 0 and t ~= rule.last then
    if rule.first == 0 then -- the log is empty: the entry of the state becomes its oldest
      WindowLog.open()
      rule.first = rule.last
    end
    WindowLog.add(rule.slot, rule.last, rule.pending)
    rule.pending = 0
  end
  rule.last, rule.wanted = t, 0
  rule.pending = rule.pending + cost
  rule.used = rule.used + cost
end

function SlidingWindowRule.give(rule, cost, t)
  local back = 0
  if t == rule.last then
    back = min(cost, rule.pending)
    rule.pending = rule.pending - back
  elseif rule.first > 0 then
    back = WindowLog.give(rule.slot, t, cost)
  end
  rule.used, rule.wanted = rule.used - back, 0
end

function SlidingWindowRule.settle(rule, extra, t, now)
  if extra < 0 then
    rule:give(-extra, t)
  elseif extra > 0 then
    rule:take(min(extra, MOST - rule.used), max(now, rule.last))
  end
end

function SlidingWindowRule.drain(rule, left, since, now)
  rule:refresh(now)
  if rule.gone <= since then rule:settle(max(0, rule.capacity - rule.used - left), now, now) end
end

function SlidingWindowRule.ahead(rule, total, t, now)
  rule:refresh(now)
  local periods = floor((total - 1) / rule.capacity)
  local rest = total - 1 - periods * rule.capacity
  local need = rule.used + rest + 1 - rule.capacity
  local beyond = max(0, need - STRIDE)
  local pace = ceil(beyond / rule.capacity * rule.per)
  local free = t
  if need > 0 then free = max(t, rule:freed(need - beyond) + pace) end
  return free + periods * rule.per
end

function SlidingWindowRule.idle_at(rule)
  return rule.last > 0 and rule.last + rule.per or 0
end

function SlidingWindowRule.left(rule, t)
  rule:refresh(t)
  return rule.capacity - rule.used
end

function SlidingWindowRule.adopt(rule, old, t)
  rule.slot, rule.used, rule.first = old.slot, old.used, old.first
  rule.last, rule.pending = old.last, old.pending
  rule.wanted, rule.gone = 0, t
end

function SlidingWindowRule.numbers(rule)
  return rule.slot, rule.used, rule.first, rule.last, rule.pending, rule.wanted, rule.found,
    rule.gone
end

function SlidingWindowRule.restore(rule, slot, used, first, last, pending, wanted, found, gone)
  rule.slot, rule.used, rule.first, rule.last, rule.pending = slot, used, first, last, pending
  rule.wanted, rule.found, rule.gone = wanted, found, gone
end

return SlidingWindowRule
