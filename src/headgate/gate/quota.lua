-- The calendar window, on integers. Twin: quota.py, function for function; the reasons stand there.

local Quota = { holds = false }

function Quota.new(unit, numbers)
  return {
    kind = Quota, unit = unit, capacity = numbers[1], per = numbers[2], anchor = numbers[3], slack = numbers[4],
  }
end

function Quota.began(rule, t)
  return t - (t - rule.anchor) % rule.per
end

function Quota.open(rule, t)
  rule.start, rule.used = Quota.began(rule, t), 0
end

function Quota.load(rule, read)
  rule.start, rule.used = read(), read()
end

function Quota.save(rule, write)
  write(rule.start) write(rule.used)
end

function Quota.refresh(rule, t)
  local began = Quota.began(rule, t)
  if began > rule.start then rule.start, rule.used = began, 0 end
end

function Quota.ready(rule, cost, t)
  local began = math.max(Quota.began(rule, t), rule.start)
  local spent = began == rule.start and rule.used + cost > rule.capacity
  if spent or t >= began + rule.per - rule.slack then return began + rule.per end
  return t
end

function Quota.take(rule, cost, t, now)
  Quota.refresh(rule, t)
  rule.used = rule.used + cost
end

function Quota.give(rule, cost, t, now)
  if Quota.began(rule, t) == rule.start then rule.used = math.max(0, rule.used - cost) end
end

function Quota.settle(rule, extra, t, now)
  if extra < 0 then
    Quota.give(rule, -extra, t, now)
  elseif extra > 0 then
    Quota.take(rule, extra, now, now)
  end
end

function Quota.ahead(rule, total, t)
  Quota.refresh(rule, t)
  local periods = math.floor((total - 1) / rule.capacity)
  local rest = total - 1 - periods * rule.capacity
  return Quota.ready(rule, rest + 1, t) + periods * rule.per
end

function Quota.idle_at(rule)
  return rule.used > 0 and rule.start + rule.per or 0
end

function Quota.left(rule, t)
  Quota.refresh(rule, t)
  return rule.capacity - rule.used
end

function Quota.adopt(rule, old, t)
  Quota.refresh(old, t)
  rule.start = Quota.began(rule, t)
  rule.used = old.used
end

return Quota
