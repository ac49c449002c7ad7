-- The first state of a name, and the change of its rules to those of a new declaration.

Setup = {}

-- A state that cannot be read goes, and with it the records and outboxes of that time.
function Setup.create(program, now)
  -- Raises WRONGTYPE before any write if MEMBERS belongs to another program.
  Membership.count_waiters()
  gate = {
    program = program, rules = Limits.parse(program), waiting = {}, t = now, not_before = 0,
    own_pause = 0, whole_pause = 0, reserved = 0, fence = now, last_place = 0, keys_end = 0,
    members_end = 0, next_expiry = 0, held = 0, queued = 0, next_sweep = 0, sweep_cursor = 0,
    restarted_at = now, sessions = 0, tidied_at = 0, large = false,
  }
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  redis.call('DEL', HASH, MEMBERS)
end

function Setup.follow()
  for i, rule in ipairs(gate.rules) do
    if rule.kind == 'window' then redis.call('HDEL', HASH, 'log' .. i) end
  end
  local rules = Limits.parse(PROGRAM)
  local opened = Gate.follow(rules, Queue.each)
  gate.program = PROGRAM
  Repair.count_holders(opened)
end
