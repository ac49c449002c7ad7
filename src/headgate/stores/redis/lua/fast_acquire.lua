-- The fast path: one acquire that can pass at once, if the session knows the limits and has no
-- waiters. The reply is that of main.lua. nil: nothing was done.

FastAcquire = {}

local SIZE = 13 -- of ARGV with one acquire

-- The words of ARGV are those of main.lua. An even sum of flags: the session has no waiters.
local function fits(its_args)
  return #its_args == SIZE and its_args[8] == 'acquire' and its_args[10] == '1'
    and its_args[4] == KNOWN and Numbers.parse(its_args[6]) % 2 == 0
end

local function is_ready(costs, now)
  if gate.queued > 0 or gate.not_before > now then return false end
  if gate.next_expiry > 0 and gate.next_expiry <= now then return false end
  local rules = gate.rules
  for i = 1, #rules do
    local rule, cost = rules[i], costs[i]
    if cost > rule.capacity or (cost > 0 and rule:ready(cost, now) ~= now) then return false end
  end
  return true
end

local function take(costs, now, number, asked)
  gate.t = now
  Gate.take(costs, now)
  local lease = gate.rules.lease
  if lease then
    Holders.reset()
    Holders.add({ SESSION .. ':' .. Numbers.text(number) .. ':' .. asked }, now, lease)
    Holders.write()
  end
end

function FastAcquire.run(its_keys, its_args)
  if not fits(its_args) then return nil end
  begin(its_keys, its_args)
  local received, flags = args[5], Numbers.parse(args[6])
  local number, asked = Numbers.parse(args[9]), args[SIZE]
  CLUSTERED = flags >= 4
  local reply_field = 'r' .. SESSION
  local stored = redis.call('HMGET', HASH, 'limits', 'state', reply_field)
  local former, alive_until, last, last_now = ReplyCache.recall(stored[3])
  if former then return former end
  if received ~= '0' and not ReplyCache.was_received(last, last_now, received) then return nil end
  if stored[1] ~= PROGRAM or not stored[2] then return nil end
  if not State.load(PROGRAM, stored[2]) then return nil end
  server_time = clock()
  local now, costs = max(server_time, gate.t), RequestId.costs_of(asked)
  if Sessions.members_expired() or not is_ready(costs, now) then
    -- Nothing changed: the state that `State.load` took out is remembered again.
    State.remember(stored[2])
    return nil
  end
  if is_long(stored[3]) then gate.large = true end
  take(costs, now, number, asked)
  alive_until = Sessions.stay_alive(alive_until)
  Expiry.extend()
  local words = '-1 0 grant 1 0 ' .. Numbers.text(gate.fence - now) .. ' |'
  redis.call('HSET', HASH, 'state', State.save(), reply_field,
    ReplyCache.pack(now, CALL, alive_until, flags % 4 == 2, words))
  Expiry.write()
  return ReplyCache.done(now, words)
end
