-- The counter of a concurrency limit. Twin: concurrency.py; the reasons stand there.

local ConcurrencyRule = { kind = 'slots', holds = true }

function ConcurrencyRule.new(unit, numbers)
  return { unit = unit, capacity = numbers[1], lease = numbers[2] }
end

-- Only a new rule is opened here: Gate.reset leaves out those that hold permits.
function ConcurrencyRule.open(rule, t)
  rule.used = 0
end

function ConcurrencyRule.ready(rule, cost, t)
  return rule.used + cost <= rule.capacity and t or NEVER
end

function ConcurrencyRule.take(rule, cost, t)
  rule.used = rule.used + cost
end

function ConcurrencyRule.give(rule, cost, t)
  rule.used = max(0, rule.used - cost)
end

function ConcurrencyRule.settle(rule, extra, t, now) end

function ConcurrencyRule.drain(rule, left, since, now) end

function ConcurrencyRule.ahead(rule, total, t, now)
  return t
end

function ConcurrencyRule.idle_at(rule)
  return rule.used > 0 and NEVER or 0
end

function ConcurrencyRule.left(rule, t)
  return rule.capacity - rule.used
end

function ConcurrencyRule.adopt(rule, old, t)
  rule.used = old.used
end

function ConcurrencyRule.numbers(rule, t)
  return rule.used
end

function ConcurrencyRule.restore(rule, t, used)
  rule.used = used
end

return ConcurrencyRule
