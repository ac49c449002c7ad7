-- The fast path: one acquire that can pass at once, with an empty queue. It replies as main.lua
-- would, or nil. Nil means that it did nothing, and that the client makes the whole call.
--
-- KEYS  1 HASH, 2 MEMBERS, 3 LOG: only if a limit may be a window (prelude.lua)
-- ARGV  1 program     the limits as text
--       2 session     its name
--       3 call        the number of this call
--       4 number      of the request
--       5 asked       its units: "-" or "requests=3,tokens=900"
--       6... costs    its cost for each rule

FastAcquire = {}

local COSTS = 5 -- the costs follow this argument

-- Whether all rules have the cost of the request, at `now`.
local function is_ready(now)
  if gate.queued > 0 or gate.not_before > now then return false end
  if gate.next_expiry > 0 and gate.next_expiry <= now then return false end
  local rules = gate.rules
  for i = 1, #rules do
    local rule, cost = rules[i], tonumber(args[COSTS + i])
    if cost > rule.capacity or (cost > 0 and rule:ready(cost, now) ~= now) then return false end
  end
  return true
end

local function take(now, number, asked)
  local rules = gate.rules
  for i = 1, #rules do
    local rule, cost = rules[i], tonumber(args[COSTS + i])
    if cost > 0 then rule:take(cost, now, now) end
  end
  gate.t, gate.not_before, gate.fence = now, now, max(gate.fence + 1, now)
  local lease = rules.lease
  if lease then
    Holders.reset()
    Holders.add({ SESSION .. ':' .. number .. ':' .. asked }, now, lease)
    Holders.write()
  end
end

function FastAcquire.run(its_keys, its_args)
  local program, session, call, number, asked = unpack(its_args, 1, COSTS)
  begin(its_keys, its_args, program, session, call)
  local reply_field = 'r' .. session
  local stored = redis.call('HMGET', HASH, 'limits', 'state', reply_field)
  local former, alive_until, last = ReplyCache.recall(stored[3])
  if former then return former end
  if ReplyCache.skips_a_call(last) then return nil end
  if stored[1] ~= program or not stored[2] then return nil end
  if not State.load(program, stored[2]) then return nil end
  server_time = clock()
  local now = max(server_time, gate.t)
  if not is_ready(now) then
    -- `State.load` took the state out. Nothing changed, so it is put back.
    State.remember(stored[2])
    return nil
  end
  take(now, number, asked)
  alive_until = Sessions.stay_alive(alive_until)
  local extended = Expiry.extend()
  local reply = session .. ' ' .. call .. ' ok ' .. Numbers.text(now) .. ' -1 0 grant 1 0 '
    .. Numbers.text(gate.fence - now) .. ' |'
  redis.call('HSET', HASH, 'state', State.save(), reply_field,
    ReplyCache.pack(alive_until, CALL, 0, reply))
  Expiry.write(extended)
  return reply
end
