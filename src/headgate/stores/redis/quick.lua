-- The hot path: one acquire that can pass this instant, behind nobody. It says what call.lua would say, or nil, with nothing done,
-- whenever anything else is to be seen to: then the whole call is made.
--
-- args: as in shared.lua, 4 number of the caller, 5 asked, 6... its cost for each rule.

-- Whether all rules have what is asked for, at `now`.
local function ready(now)
  if gate.queued > 0 or gate.act > now or (gate.soonest > 0 and gate.soonest <= now) then return false end
  local rules = gate.rules
  for i = 1, #rules do
    local rule, cost = rules[i], tonumber(args[5 + i])
    if cost > rule.capacity or (cost > 0 and rule:ready(cost, now) ~= now) then return false end
  end
  return true
end

local function take(now)
  local rules = gate.rules
  for i = 1, #rules do
    local rule, cost = rules[i], tonumber(args[5 + i])
    if cost > 0 then rule:take(cost, now, now) end
  end
  gate.t, gate.act, gate.fence = now, now, max(gate.fence + 1, now)
  local lease = gate.rules.lease
  if lease then
    Promises.fresh()
    Promises.hold({ SESSION .. ':' .. args[4] .. ':' .. args[5] }, now, lease)
    Promises.write_holds()
  end
end

function Calls.quick(its_keys, its_args)
  begin(its_keys, its_args)
  local stored = redis.call('HMGET', HASH, 'limits', 'state', 'r' .. SESSION)
  local former, alive_until, last = Calls.recall(stored[3])
  if former then return former end
  if Calls.skips(last) then return nil end
  if stored[1] ~= PROGRAM or not stored[2] then return nil end
  if not Numbers.load(PROGRAM, stored[2]) then return nil end
  local now = max(clock(), gate.t)
  if not ready(now) then
    Numbers.remember(stored[2])
    return nil
  end
  take(now)
  alive_until = Promises.attend(alive_until)
  local extended = Promises.extend()
  local fence = State.int(gate.fence - now)
  local answered = SESSION .. ' ' .. args[3] .. ' ok ' .. State.int(now) .. ' -1 0 grant 1 0 ' .. fence .. ' |'
  redis.call('HSET', HASH, 'state', Numbers.save(), 'r' .. SESSION, Calls.record(alive_until, CALL, 0, answered))
  Promises.keep(extended)
  return answered
end
