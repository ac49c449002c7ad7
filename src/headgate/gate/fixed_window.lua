-- The calendar window. Twin: fixed_window.py; the reasons stand there.

local FixedWindowRule = { kind = 'quota', holds = false }

function FixedWindowRule.new(unit, numbers)
  return {
    unit = unit, capacity = numbers[1], per = numbers[2], anchor = numbers[3], slack = numbers[4],
  }
end

function FixedWindowRule.open(rule, t)
  rule.start, rule.used = t, 0
end

function FixedWindowRule.began(rule, t)
  return t - (t - rule.anchor) % rule.per
end

function FixedWindowRule.refresh(rule, t)
  local began = rule:began(t)
  if began > rule.start then rule.start, rule.used = began, 0 end
end

function FixedWindowRule.ready(rule, cost, t)
  local running = rule:began(rule.start)
  local began = max(rule:began(t), running)
  local spent = began == running and rule.used + cost > rule.capacity
  if spent or t >= began + rule.per - rule.slack then return began + rule.per end
  return t
end

function FixedWindowRule.take(rule, cost, t)
  rule:refresh(t)
  rule.used = rule.used + cost
end

function FixedWindowRule.give(rule, cost, t)
  if rule:began(t) <= rule.start and rule.start <= t then rule.used = max(0, rule.used - cost) end
end

function FixedWindowRule.settle(rule, extra, t, now)
  if extra < 0 then
    rule:give(-extra, t)
  elseif extra > 0 then
    rule:refresh(now)
    rule.used = min(MOST, rule.used + extra)
  end
end

function FixedWindowRule.drain(rule, left, since, now)
  rule:refresh(now)
  if rule:began(since) == rule:began(rule.start) then
    rule.used = max(rule.used, rule.capacity - left)
  end
end

function FixedWindowRule.ahead(rule, total, t, now)
  local periods = floor((total - 1) / rule.capacity)
  local rest = total - 1 - periods * rule.capacity
  return rule:ready(rest + 1, t) + periods * rule.per
end

function FixedWindowRule.idle_at(rule)
  return rule.used > 0 and rule:began(rule.start) + rule.per or 0
end

function FixedWindowRule.left(rule, t)
  rule:refresh(t)
  return rule.capacity - rule.used
end

function FixedWindowRule.adopt(rule, old, t)
  old:refresh(t)
  rule.start = max(rule:began(t), old.start)
  rule.used = old.used
end

function FixedWindowRule.numbers(rule, t)
  return rule.start - t, rule.used
end

function FixedWindowRule.restore(rule, t, start, used)
  rule.start, rule.used = t + start, used
end

return FixedWindowRule
