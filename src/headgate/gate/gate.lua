-- The gate decides which request may pass, and when. Twin: gate.py; the reasons stand there.
--
-- It is pure: it changes `gate` (prelude.lua), and calls no other part. The queue is in a sorted
-- set, so its requests come as arguments, and so do their costs for each rule.

Gate = {}

local ROUNDS = 100 -- how often rules may delay each other (S9)
local GRANTS = 1000 -- the most that one call makes (S9)

function Gate.never(costs)
  local rules = gate.rules
  for i = 1, #costs do
    if costs[i] > rules[i].capacity then return true end
  end
  return false
end

-- Returns the indices of new concurrency limits: their permits are not counted yet.
function Gate.adopt(rules, t)
  local former, opened, others = { unpack(gate.rules) }, {}, {}
  for i, rule in ipairs(rules) do
    rule:open(t)
    local old
    for j, each in ipairs(former) do
      if each.kind == rule.kind and each.unit == rule.unit then
        old = table.remove(former, j)
        break
      end
    end
    if old then
      rule:adopt(old, t)
    else
      opened[i] = rule.holds or nil
      others[#others + 1] = rule
    end
  end
  for _, rule in ipairs(others) do
    for _, old in ipairs(former) do
      local succeeds = rule.unit == old.unit and not (rule.holds or old.holds)
      if succeeds then Gate.carry_over(rule, old, t) end
    end
  end
  return opened
end

function Gate.carry_over(rule, old, t)
  local left, old_left = rule:left(t), old:left(t)
  local used = old.capacity - old_left
  local charge = left - max(rule.capacity - used, min(0, old_left))
  local taken = min(charge, max(0, left))
  if taken > 0 then rule:take(taken, t) end
  if charge > taken then rule:settle(charge - taken, t, t) end
end

function Gate.clamp(now)
  gate.t = max(now, gate.t)
  return gate.t
end

function Gate.ready(costs)
  local t = max(gate.t, gate.not_before)
  for _ = 1, ROUNDS do
    local moment = t
    for i = 1, #costs do
      if costs[i] > 0 then moment = gate.rules[i]:ready(costs[i], moment) end
    end
    if moment == t then return t end
    if moment >= NEVER then return NEVER end
    t = moment
  end
  return NEVER
end

function Gate.take(costs, t)
  for i = 1, #costs do
    if costs[i] > 0 then gate.rules[i]:take(costs[i], t) end
  end
  gate.not_before, gate.reserved = t, t
  gate.fence = max(gate.fence + 1, gate.t)
  return t, gate.fence
end

-- Grants those of `count` equal requests that may pass at once. Returns how many, and the first
-- fence. acquire() for each would do the same.
function Gate.pass(costs, count)
  local t, all = gate.t, {}
  if gate.queued > 0 or Gate.ready(costs) ~= t then return 0 end
  for i = 1, #costs do
    if costs[i] > 0 then count = min(count, floor(gate.rules[i]:left(t) / costs[i])) end
  end
  for i = 1, #costs do all[i] = count * costs[i] end
  local _, fence = Gate.take(all, t)
  gate.fence = fence + count - 1
  return count, fence
end

-- Returns 'grant', t, fence; 'late', t; 'full', t, position; or 'wait', t, position. After 'wait'
-- the caller of this function calls Gate.join.
function Gate.acquire(costs, reserve_ahead, max_sleep, max_waiters)
  local now, queued = gate.t, gate.queued
  local t = queued > 0 and NEVER or Gate.ready(costs)
  if t <= now + (max_sleep and min(reserve_ahead, max_sleep) or reserve_ahead) then
    return 'grant', Gate.take(costs, t)
  end
  if t >= NEVER then t = Gate.estimate(costs) end
  if max_sleep and (max_sleep == 0 or t > now + max_sleep) then return 'late', t end
  if max_waiters and queued >= max_waiters then return 'full', t, queued end
  return 'wait', t, queued
end

function Gate.estimate(costs)
  local first = max(gate.t, gate.not_before)
  local t = first
  for i, rule in ipairs(gate.rules) do
    if costs[i] > 0 then t = max(t, rule:ahead(gate.waiting[i] + costs[i], first, gate.t)) end
  end
  return t
end

function Gate.join(count, costs)
  local waiting = gate.waiting
  gate.queued = gate.queued + count
  for i = 1, #costs do waiting[i] = waiting[i] + count * costs[i] end
end

function Gate.amend(before, costs)
  Gate.join(-1, before)
  Gate.join(1, costs)
end

function Gate.leave(count, costs)
  Gate.join(-count, costs)
end

-- head() returns the first request of the queue and its costs. granted(id, t, fence) removes it.
-- This function returns the first that has to wait, and its moment.
function Gate.advance(reserve_ahead, head, granted)
  local left = GRANTS
  while true do
    local id, costs = head()
    if not id then return nil, NEVER end
    local t = Gate.ready(costs)
    if t > gate.t + reserve_ahead or left == 0 then return id, t end
    Gate.leave(1, costs)
    granted(id, Gate.take(costs, t))
    left = left - 1
  end
end

function Gate.release(costs, count)
  for i, rule in ipairs(gate.rules) do
    if rule.holds then rule:give(count * costs[i], gate.t) end
  end
end

function Gate.cancel(costs, t)
  for i, rule in ipairs(gate.rules) do
    if costs[i] > 0 then rule:give(costs[i], t) end
  end
end

function Gate.settle(extras, t)
  for _, rule in ipairs(gate.rules) do
    local extra = extras[rule.unit]
    if extra then rule:settle(extra, t, gate.t) end
  end
end

function Gate.drain(unit, limit, left, since)
  if since == 0 then since = gate.t end
  for _, rule in ipairs(gate.rules) do
    if rule.unit == unit and (limit == 0 or limit == rule.capacity) then
      rule:drain(left, min(since, gate.t), gate.t)
    end
  end
end

function Gate.pause(time)
  gate.own_pause = max(gate.own_pause, gate.t + time, gate.reserved + 1)
  gate.not_before = max(gate.not_before, gate.own_pause)
end

function Gate.pause_whole(time)
  gate.whole_pause = gate.t + time
  gate.not_before = max(gate.reserved, gate.own_pause, gate.whole_pause)
end

function Gate.pause_left()
  return gate.not_before > max(gate.t, gate.reserved) and gate.not_before - gate.t or 0
end

function Gate.resume()
  if Gate.pause_left() == 0 then return end
  gate.own_pause = 0
  gate.not_before = max(gate.reserved, gate.whole_pause)
end

function Gate.reset()
  local start = max(gate.t, gate.reserved)
  for _, rule in ipairs(gate.rules) do
    if not rule.holds then rule:open(start) end
  end
end

function Gate.follow(rules, each_waiter)
  local opened = Gate.adopt(rules, max(gate.t, gate.reserved))
  gate.rules = rules
  Gate.requeue(each_waiter)
  return opened
end

-- each_waiter(see) calls see(costs) for each request. Requests that can never pass any more stay:
-- Queue.head removes each when it is the head.
function Gate.requeue(each_waiter)
  local waiting = gate.waiting
  for i = 1, #gate.rules do waiting[i] = 0 end
  each_waiter(function(costs)
    for i = 1, #costs do waiting[i] = waiting[i] + costs[i] end
  end)
end
