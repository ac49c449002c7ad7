-- The gate: who may pass, and when. Twin: gate.py, function for function; the reasons stand there.
--
-- `gate` is the state of one name: program, t, act, booked, fence, rules, waiting (per rule), order (the next place in the queue). The queue is
-- in a sorted set, by place (who.lua); what a caller asks for is part of its name, see queue.lua.

local ROUNDS = 100 -- times that rules may put each other off; only quotas ever do (S9)
local GRANTS = 1000 -- grants that one call makes (S9)

function Gate.clamp(now)
  gate.t = max(now, gate.t)
  return gate.t
end

function Gate.never(costs)
  local rules = gate.rules
  for i = 1, #costs do
    if costs[i] > rules[i].capacity then return true end
  end
  return false
end

function Gate.ready(costs)
  local t = max(gate.t, gate.act)
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
    if costs[i] > 0 then gate.rules[i]:take(costs[i], t, gate.t) end
  end
  gate.act, gate.booked = t, t
  gate.fence = max(gate.fence + 1, gate.t)
  return t, gate.fence
end

-- So many times acquire(), for less: of `count` who ask for the same, lets pass at once those who may this moment. Returns how many,
-- and the fence of the first.
function Gate.pass(costs, count)
  local t, all = gate.t, {}
  if State.queue_length() > 0 or Gate.ready(costs) ~= t then return 0 end
  for i = 1, #costs do
    if costs[i] > 0 then count = min(count, floor(gate.rules[i]:left(t) / costs[i])) end
  end
  for i = 1, #costs do all[i] = count * costs[i] end
  local _, fence = Gate.take(all, t)
  gate.fence = fence + count - 1
  return count, fence
end

-- Returns 'grant', t, fence; 'wait', t, position (the caller is to join); 'late', t (beyond max_sleep); 'full', t, position.
function Gate.acquire(costs, horizon, max_sleep, max_waiters)
  local now = gate.t
  local queued = State.queue_length()
  local t = queued > 0 and NEVER or Gate.ready(costs)
  if t <= now + (max_sleep and min(horizon, max_sleep) or horizon) then return 'grant', Gate.take(costs, t) end
  if t >= NEVER then t = Gate.estimate(costs) end
  if max_sleep and (max_sleep == 0 or t > now + max_sleep) then return 'late', t end
  if max_waiters and queued >= max_waiters then return 'full', t, queued end
  return 'wait', t, queued
end

function Gate.estimate(costs)
  local first = max(gate.t, gate.act)
  local t = first
  for i, rule in ipairs(gate.rules) do
    if costs[i] > 0 then t = max(t, rule:ahead(gate.waiting[i] + costs[i], first, gate.t)) end
  end
  return t
end

-- So many more are in the queue, who ask for the same each; or so many less.
function Gate.join(count, costs)
  local waiting = gate.waiting
  gate.queued = gate.queued + count
  for i = 1, #costs do waiting[i] = waiting[i] + count * costs[i] end
end

-- Of callers who ask for the same; returns how many were there.
function Gate.leave(callers, asked)
  local left = State.queue_remove(callers)
  if left > 0 then Gate.join(-left, State.costs_of(asked)) end
  return left
end

-- Lets pass, in order, whoever's moment is within the horizon; granted(caller, t, fence) hears of each. Returns who is next, and when.
function Gate.advance(horizon, granted)
  local left = GRANTS
  while true do
    local caller = Sessions.head_of_queue()
    if not caller then return nil, NEVER end
    local costs = State.costs_of(State.asked_of(caller))
    local t = Gate.ready(costs)
    if t > gate.t + horizon or left == 0 then return caller, t end
    State.queue_pass()
    Gate.join(-1, costs)
    granted(caller, Gate.take(costs, t))
    left = left - 1
  end
end

function Gate.next_at()
  local caller = Sessions.head_of_queue()
  return caller and Gate.ready(State.costs_of(State.asked_of(caller))) or NEVER
end

-- Of `count` who held the same each.
function Gate.release(asked, count)
  local costs = State.costs_of(asked)
  for i, rule in ipairs(gate.rules) do
    if rule.holds then rule:give(count * costs[i], gate.t, gate.t) end
  end
end

function Gate.cancel(asked, t)
  local costs = State.costs_of(asked)
  for i, rule in ipairs(gate.rules) do
    if costs[i] > 0 then rule:give(costs[i], t, gate.t) end
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
    if rule.unit == unit and (limit == 0 or limit == rule.capacity) then rule:drain(left, min(since, gate.t), gate.t) end
  end
end

function Gate.pause(time)
  gate.act = max(gate.act, gate.t + time, gate.booked + 1)
end

function Gate.pause_left()
  return gate.act > max(gate.t, gate.booked) and gate.act - gate.t or 0
end

function Gate.resume()
  if Gate.pause_left() > 0 then gate.act = gate.booked end
end

function Gate.reset()
  local start = max(gate.t, gate.booked)
  for _, rule in ipairs(gate.rules) do
    if rule.logs then Log.drop(rule.slot, MOST - 1) end
    if not rule.holds then rule:open(start) end
  end
end

function Gate.follow(program)
  local now, former, rules = max(gate.t, gate.booked), gate.rules, Rules.parsed(program)
  local taken, opened, others = {}, {}, {}
  for i, rule in ipairs(rules) do
    rule:open(now)
    opened[i] = rule.holds or nil
    others[i] = true
    for j, old in ipairs(former) do
      if not taken[j] and old.kind == rule.kind and old.unit == rule.unit then
        taken[j], opened[i], others[i] = true, nil, false
        rule:adopt(old, now)
        break
      end
    end
  end
  for i, rule in ipairs(rules) do
    for j, old in ipairs(former) do
      local heir = others[i] and not taken[j] and rule.unit == old.unit
      if heir and not (rule.holds or old.holds) then Gate.carry_over(rule, old, now) end
    end
  end
  gate.program, gate.rules = program, rules
  Sessions.count_holders(opened)
  Rules.give_slots(rules)
  Gate.requeue()
end

function Gate.carry_over(rule, old, t)
  local left, before = rule:left(t), old:left(t)
  local spent = left - max(rule.capacity - old.capacity + before, min(0, before))
  local room = min(spent, max(0, left))
  if room > 0 then rule:take(room, t, t) end
  if spent > room then rule:settle(spent - room, t, t) end
end

-- What the whole queue costs under the present rules. A waiter that can never pass any more is told so when it is the head.
function Gate.requeue()
  for i = 1, #gate.rules do gate.waiting[i] = 0 end
  Who.each(0, gate.queued, function(caller)
    for i, cost in ipairs(State.costs_of(State.asked_of(caller))) do gate.waiting[i] = gate.waiting[i] + cost end
  end)
end
