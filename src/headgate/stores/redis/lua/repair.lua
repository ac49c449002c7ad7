-- Counts the members again if some were lost. An operator or eviction can remove one key of a name,
-- and a server can refuse a command in the middle of a call.

Repair = {}

-- Adds the held permits to the rules in `opened`: a new concurrency limit may have been here before
-- (S1).
function Repair.count_holders(opened)
  if not next(opened) then return end
  Membership.each_holder(function(id)
    for i, cost in ipairs(RequestId.costs(id)) do
      if opened[i] then gate.rules[i].used = gate.rules[i].used + cost end
    end
  end)
end

local function repair_queue(queued)
  -- `restarted_at` must be later than each earlier call. After the clock has stepped back, gate.t
  -- is still that of the last call, so add 1.
  if queued < gate.queued then
    gate.t = gate.t + 1
    gate.restarted_at = gate.t
  end
  gate.queued = queued
  Gate.requeue(Queue.each)
end

local function repair_holders(held)
  local holds = {}
  for i, rule in ipairs(gate.rules) do
    if rule.holds then rule.used, holds[i] = 0, true end
  end
  Repair.count_holders(holds)
  gate.held, gate.next_expiry = held, Membership.first_lease_end()
end

-- A state that is still remembered comes from a complete call, and has three counts. If their sum
-- is the number of members, nothing was lost since then.
function Repair.run()
  local count, alone = Membership.count(), gate.members_end == 0
  if alone and count == 0 then gate.sessions = 0 end
  if not gate.sessions or count ~= gate.queued + gate.held + gate.sessions then
    local queued, held = Membership.count_waiters(), Membership.count_holders()
    gate.sessions = count - queued - held
    if queued ~= gate.queued then repair_queue(queued) end
    if held ~= gate.held then repair_holders(held) end
  end
  -- The call that made MEMBERS failed, or its sessions were lost. Those that live have records.
  if (alone and count > 0) or (not alone and gate.sessions == 0) then
    gate.members_end = 0
    Sessions.enlist()
  end
  members_stay = gate.sessions > 0
end
