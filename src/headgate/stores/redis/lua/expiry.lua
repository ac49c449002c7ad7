-- The TTL of the keys: they outlive every promise that is kept in them (S8, T12).

Expiry = {}

local SLACK = 60000000 -- more than the keys must live, so that few calls set a TTL

-- Returns whether the keys must live longer now.
function Expiry.extend()
  local last = gate.t + KEEP + WAITER
  local lease = gate.held > 0 and gate.rules.lease
  if lease then last = max(last, max(gate.t, gate.not_before) + lease) end
  local rules = gate.rules
  for i = 1, #rules do
    local rule = rules[i]
    local idle = rule:idle_at()
    if idle > last and idle < NEVER then last = idle end
    -- Without keys, this bucket begins again with less than its capacity: they stay for a day.
    if rule.size and rule.start < rule.size then last = max(last, gate.t + DAY) end
  end
  if last <= gate.keys_end then return false end
  gate.keys_end = last + SLACK
  return true
end

function Expiry.outlast(time)
  if gate.t + time <= gate.keys_end then return end
  gate.keys_end = gate.t + time + SLACK
  for _, key in ipairs(keys) do mark_for_ttl(key) end
end

-- The server expires keys by its own clock. If gate.t is ahead of it, the TTL is longer.
function Expiry.write(extended)
  if not extended and not need_ttl then return end
  local left = Numbers.text(ceil((gate.keys_end - server_time) / 1000))
  for _, key in ipairs(keys) do
    if extended or need_ttl[key] then redis.call('PEXPIRE', key, left) end
  end
end
