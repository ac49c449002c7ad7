-- A name's first state, and the keys of its windows. Here lives what a call does that finds nothing of the name, or other limits.

-- Each window has one of the log keys for as long as it lives; a new one gets the first that is free.
function Rules.give_slots(rules)
  local used = {}
  for _, rule in ipairs(rules) do
    if rule.slot then used[rule.slot] = true end
  end
  for _, rule in ipairs(rules) do
    if rule.logs and not rule.slot then
      local slot = 1
      while used[slot] do slot = slot + 1 end
      used[slot] = true
      rule.slot = slot
      redis.call('DEL', State.log_key(rule))
    end
  end
end

function Rules.new(program, now)
  gate = { program = program, t = now, act = 0, fence = now, order = 0, ttl = 0 }
  gate.soonest, gate.held, gate.queued, gate.sweep, gate.cursor, gate.born, gate.waiting = 0, 0, 0, now, 0, 0, {}
  gate.rules = Rules.parsed(program)
  for i, rule in ipairs(gate.rules) do
    gate.waiting[i] = 0
    rule:open(now)
  end
  Rules.give_slots(gate.rules)
  redis.call('DEL', QUEUE, HOLDERS, SESSIONS)
end
