-- The token bucket, on integers. Twin: bucket.py, function for function; the reasons stand there.

local Bucket = { holds = false }
local DEBT = 2251799813685248 -- 2^51

function Bucket.new(unit, numbers)
  local rule = { kind = 'bucket', unit = unit, capacity = numbers[1], price = numbers[2], gain = numbers[3], tick = numbers[4] }
  rule.size = rule.capacity * rule.price
  rule.start = numbers[5] * rule.price
  return rule
end

function Bucket.open(rule, t)
  rule.level, rule.at, rule.taken, rule.peak = rule.start, t, 0, 0
end

function Bucket.refresh(rule, t)
  local ticks = math.floor((t - rule.at) / rule.tick)
  if ticks > 0 then
    rule.level = rule.level + ticks * rule.gain
    rule.at = rule.at + ticks * rule.tick
  end
  if rule.level >= rule.size then
    rule.level = rule.size
    rule.at = math.max(t, rule.at)
  end
end

function Bucket.ready(rule, cost, t)
  local need = cost * rule.price - rule.level
  if need <= 0 then return t end
  return math.max(t, rule.at + math.ceil(need / rule.gain) * rule.tick)
end

function Bucket.take(rule, cost, t, now)
  rule:refresh(t)
  rule.peak = rule.taken > now and math.max(rule.peak, rule.level) or rule.level
  rule.taken = t
  rule.level = rule.level - cost * rule.price
end

function Bucket.give(rule, cost, t, now)
  local parts = cost * rule.price
  if t ~= rule.taken then
    local came = math.ceil((rule.taken - t) / rule.tick) * rule.gain
    parts = t > now and math.max(math.min(parts, rule.size - rule.peak), parts - came) or 0
    rule.peak = math.min(rule.size, rule.peak + parts)
  end
  rule.level = math.min(rule.size, rule.level + parts)
end

function Bucket.settle(rule, extra, t, now)
  rule:refresh(now)
  local parts = -extra * rule.price
  if parts > 0 and rule.taken > now then
    parts = math.min(parts, rule.size - rule.peak)
    rule.peak = rule.peak + parts
  end
  local lowest = -math.min(MOST, math.floor(DEBT / rule.tick) * math.min(rule.gain, rule.size))
  rule.level = math.max(lowest, math.min(rule.size, rule.level + parts))
end

function Bucket.ahead(rule, total, t)
  rule:refresh(t)
  local need = total * rule.price - rule.level
  if need <= 0 then return t end
  return rule.at + math.ceil(need / math.min(rule.gain, rule.size)) * rule.tick
end

function Bucket.idle_at(rule)
  return rule.at + math.ceil((rule.size - rule.level) / rule.gain) * rule.tick
end

function Bucket.left(rule, t)
  rule:refresh(t)
  return math.floor(rule.level / rule.price)
end

function Bucket.adopt(rule, old, t)
  old:refresh(t)
  rule.level = math.min(rule.size, math.floor(old.level / old.price * rule.price))
  rule.at = math.max(t, old.at)
  rule.taken = old.taken
  rule.peak = rule.size
end

return Bucket
