-- What outlasts a call: leases, sessions, and the time for which the keys must be remembered.

local SLACK = 60000000 -- for which keys live beyond what they must, so that they need not be told with each call

local holds -- leases that are not written yet

function Promises.fresh()
  holds = nil
end

function Promises.hold(callers, t, lease)
  holds = holds or {}
  Who.list_holders(holds, callers, t + lease)
  if gate.soonest == 0 or t + lease < gate.soonest then gate.soonest = t + lease end
end

function Promises.write_holds()
  if not holds then return end
  gate.held = gate.held + Who.add_holders(holds)
  holds = nil
end

-- Stay alive, and forget sessions that have been silent for long. The moment until which, before and after.
function Promises.attend(alive_until)
  if alive_until >= gate.t + 0.75 * WAITER and alive_until >= gate.born + WAITER then return alive_until end
  Who.keep_alive(SESSION, gate.t + WAITER)
  for _, session in ipairs(Who.silent_since(gate.t - KEEP, CLEANUP)) do
    Who.drop_session(session)
    redis.call('HDEL', HASH, 'r' .. session, 'm' .. session)
  end
  return gate.t + WAITER
end

-- The moment until which a promise made here may have to be remembered.
local function last_promise()
  local last = gate.t + KEEP + WAITER
  local lease = gate.held > 0 and gate.rules.lease
  if lease then last = max(last, max(gate.t, gate.act) + lease) end
  local rules = gate.rules
  for i = 1, #rules do
    local rule = rules[i]
    local idle = rule:idle_at()
    if idle > last and idle < NEVER then last = idle end
    if rule.size and rule.start < rule.size then last = max(last, gate.t + 86400000000) end
  end
  return last
end

-- Whether the keys must live longer than they were told last.
function Promises.extend()
  local last = last_promise()
  if last <= gate.ttl then return false end
  gate.ttl = last + SLACK
  return true
end

-- The keys live for so long in any case, whatever happens in it.
function Promises.outlast(time)
  if gate.t + time <= gate.ttl then return end
  gate.ttl = gate.t + time + SLACK
  for _, key in ipairs(keys) do touch(key) end
end

-- Every key outlives every promise made in it (S8, T12).
function Promises.keep(extended)
  if not extended and not touched then return end
  local left = State.int(ceil((gate.ttl - gate.t) / 1000))
  for _, key in ipairs(keys) do
    if extended or touched[key] then redis.call('PEXPIRE', key, left) end
  end
end
