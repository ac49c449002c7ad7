-- The counter of a concurrency limit. Twin: concurrency.py, function for function; the reasons stand there.

local Slots = { kind = 'slots', holds = true }

function Slots.new(unit, numbers)
  return { unit = unit, capacity = numbers[1], lease = numbers[2] }
end

function Slots.open(rule, t)
  rule.used = 0
end

function Slots.ready(rule, cost, t)
  return rule.used + cost <= rule.capacity and t or NEVER
end

function Slots.take(rule, cost, t, now)
  rule.used = rule.used + cost
end

function Slots.give(rule, cost, t, now)
  rule.used = max(0, rule.used - cost)
end

function Slots.settle(rule, extra, t, now) end

function Slots.drain(rule, left, since, now) end

function Slots.ahead(rule, total, t, now)
  return t
end

function Slots.idle_at(rule)
  return rule.used > 0 and NEVER or 0
end

function Slots.left(rule, t)
  return rule.capacity - rule.used
end

function Slots.adopt(rule, old, t)
  rule.used = old.used
end

return Slots
