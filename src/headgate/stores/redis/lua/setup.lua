-- The first state of a name, and new rules in place of others.

Setup = {}

-- A window has a range of the log, by its number `slot`, and keeps it. A new window gets the first
-- free range, which is emptied first.
local function assign_ranges(rules)
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

function Setup.create(program, now)
  -- Raises WRONGTYPE before any write if MEMBERS belongs to another program.
  Membership.count_waiters()
  gate = {
    program = program, rules = Limits.parse(program), waiting = {}, t = now, not_before = 0,
    own_pause = 0, whole_pause = 0, reserved = 0, fence = now, last_place = 0, keys_end = 0,
    next_expiry = 0, held = 0, queued = 0, next_sweep = now, sweep_cursor = 0, restarted_at = 0,
    sessions = 0,
  }
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  assign_ranges(gate.rules)
  redis.call('DEL', MEMBERS)
  redis.call('HDEL', HASH, 'former', 'offer', 'limits')
end

function Setup.follow()
  local rules = Limits.parse(PROGRAM)
  local opened = Gate.follow(rules, Queue.each)
  gate.program = PROGRAM
  Repair.count_holders(opened)
  assign_ranges(rules)
end
