-- The token bucket. Twin: token_bucket.py; the reasons stand there.

local TokenBucketRule = { kind = 'bucket', holds = false }
local DEBT = 2251799813685248 -- 2^51
local MARKS = 16

function TokenBucketRule.new(unit, numbers)
  local rule = { unit = unit, capacity = numbers[1], price = numbers[2] }
  rule.gain, rule.tick = numbers[3], numbers[4]
  rule.size = rule.capacity * rule.price
  rule.start = numbers[5] * rule.price
  rule.grain = floor(rule.size / MARKS) + 1
  return rule
end

function TokenBucketRule.open(rule, t)
  rule.level, rule.at, rule.taken, rule.top, rule.marks = rule.start, t, t, rule.size, {}
end

function TokenBucketRule.refresh(rule, t)
  local ticks = floor((t - rule.at) / rule.tick)
  if ticks > 0 then
    rule.level = rule.level + ticks * rule.gain
    rule.at = rule.at + ticks * rule.tick
  end
  if rule.level >= rule.size then
    rule.level = rule.size
    rule.at = max(t, rule.at)
  end
end

function TokenBucketRule.ready(rule, cost, t)
  local need = cost * rule.price - rule.level
  if need <= 0 then return t end
  return max(t, rule.at + ceil(need / rule.gain) * rule.tick)
end

function TokenBucketRule.take(rule, cost, t)
  rule:refresh(t)
  rule:note(t)
  rule.level = rule.level - cost * rule.price
end

function TokenBucketRule.note(rule, t)
  local level, marks = rule.level, rule.marks
  if level > rule.top then
    while #marks > 0 and marks[#marks][2] <= level do marks[#marks] = nil end
    rule.top = level
  elseif t > rule.taken and rule.top - level >= rule.grain then
    marks[#marks + 1] = { rule.taken, rule.top }
    rule.top = level
    if #marks > MARKS then
      local oldest = table.remove(marks, 1)
      marks[1][2] = max(oldest[2], marks[1][2])
    end
  end
  rule.taken = t
end

function TokenBucketRule.undo(rule, parts, t)
  if parts > 0 and t < rule.taken then
    local high = rule.top
    for _, mark in ipairs(rule.marks) do
      if mark[1] > t then high = max(high, mark[2]) end
    end
    parts = min(parts, rule.size - high)
    rule.top = rule.top + parts
    for _, mark in ipairs(rule.marks) do
      if mark[1] > t then mark[2] = mark[2] + parts end
    end
  end
  rule.level = min(rule.size, rule.level + parts)
end

function TokenBucketRule.give(rule, cost, t)
  rule:undo(cost * rule.price, t)
end

function TokenBucketRule.settle(rule, extra, t, now)
  rule:refresh(now)
  local lowest = -min(MOST, floor(DEBT / rule.tick) * min(rule.gain, rule.size))
  rule:undo(max(-extra * rule.price, lowest - rule.level), t)
end

function TokenBucketRule.drain(rule, left, since, now)
  rule:refresh(now)
  local ticks = ceil((now - since) / rule.tick)
  rule.level = min(rule.level, left * rule.price + ticks * rule.gain)
end

function TokenBucketRule.ahead(rule, total, t, now)
  local ticks = max(0, floor((t - rule.at) / rule.tick))
  local level, at = rule.level + ticks * rule.gain, rule.at + ticks * rule.tick
  if level >= rule.size then
    level, at = rule.size, max(t, at)
  end
  local need = total * rule.price - level
  if need <= 0 then return t end
  return at + ceil(need / min(rule.gain, rule.size)) * rule.tick
end

function TokenBucketRule.idle_at(rule)
  return rule.at + ceil((rule.size - rule.level) / rule.gain) * rule.tick
end

function TokenBucketRule.left(rule, t)
  rule:refresh(t)
  return floor(rule.level / rule.price)
end

function TokenBucketRule.pace(rule)
  return rule.gain / rule.price / rule.tick
end

function TokenBucketRule.adopt(rule, old, t)
  old:refresh(t)
  rule.level = min(rule.size, floor(old.level / old.price * rule.price))
  rule.at = t - min(rule.tick - 1, floor((t - old.at) * (old:pace() / rule:pace())))
  rule.taken = old.taken
end

function TokenBucketRule.numbers(rule, t)
  local marks = rule.marks
  -- The differences are mostly small, and take fewer bytes than the numbers.
  local at, taken, top = rule.at - t, rule.taken - rule.at, rule.top - rule.size
  if #marks == 0 then return rule.level, at, taken, top end
  local flat = {}
  for i, mark in ipairs(marks) do flat[2 * i - 1], flat[2 * i] = mark[1], mark[2] end
  return rule.level, at, taken, top, unpack(flat)
end

function TokenBucketRule.restore(rule, t, level, at, taken, top, ...)
  rule.level, rule.at, rule.taken, rule.top = level, t + at, t + at + taken, top + rule.size
  rule.marks = {}
  local flat = { ... }
  for i = 1, #flat, 2 do rule.marks[#rule.marks + 1] = { flat[i], flat[i + 1] } end
end

return TokenBucketRule
