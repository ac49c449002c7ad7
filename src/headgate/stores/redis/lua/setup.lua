-- The work of a call that finds nothing of the name, or other limits: the first state, and new
-- rules.

Setup = {}

-- A window keeps its slot for as long as it lives. A new window gets the first free slot, which is
-- emptied first.
local function assign_slots(rules)
  local free, logs = { true, true, true, true }, false
  for _, rule in ipairs(rules) do
    if rule.slot then free[rule.slot] = false end
    logs = logs or rule.logs
  end
  if not logs then return end
  WindowLog.open()
  for slot = 1, #free do
    if free[slot] then WindowLog.drop(slot, MOST - 1) end
  end
  local slot = 1
  for _, rule in ipairs(rules) do
    if rule.logs and not rule.slot then
      while not free[slot] do slot = slot + 1 end
      rule.slot, free[slot] = slot, false
    end
  end
end

-- The first state of a name.
function Setup.create(program, now)
  -- The call raises WRONGTYPE before any write if MEMBERS belongs to another program.
  Membership.count_waiters()
  gate = { program = program, t = now, not_before = 0, reserved = 0, fence = now, waiting = {} }
  gate.last_place, gate.keys_end, gate.next_expiry, gate.held, gate.queued = 0, 0, 0, 0, 0
  gate.next_sweep, gate.sweep_cursor, gate.restarted_at, gate.sessions = now, 0, 0, 0
  gate.rules = Limits.parse(program)
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  assign_slots(gate.rules)
  redis.call('DEL', MEMBERS)
  redis.call('HDEL', HASH, 'former', 'offer', 'limits')
end

-- Goes on under the limits of this call.
function Setup.follow()
  local rules = Limits.parse(PROGRAM)
  local opened = Gate.follow(rules, Queue.each)
  gate.program = PROGRAM
  Repair.count_holders(opened)
  assign_slots(rules)
end
