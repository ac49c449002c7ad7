-- The hot path: one acquire that can pass this instant, behind nobody. It says what call.lua would say, or nil, with nothing done,
-- whenever anything else is to be seen to: then the whole script is asked.
--
-- ARGV: as for call.lua, and 7 number of the caller, 8 asked, 9... its cost for each rule.

local stored = redis.call('HMGET', HASH, 'limits', 'state', 'r' .. SESSION)
if stored[1] ~= PROGRAM or not stored[2] then return nil end

local alive_until = 0
if stored[3] then
  local last, until_moment, former = string.match(stored[3], '^(%d+) (%d+) (.*)$')
  if CALL == tonumber(last) then return former end
  if CALL < tonumber(last) then return SESSION .. ' ' .. ARGV[4] .. ' late' end
  alive_until = tonumber(until_moment)
end
if redis.call('ZCARD', QUEUE) > 0 then return nil end

Rules.load(stored[2])
if gate.queued > 0 then return nil end
local now = math.max(clock(), gate.t)
if gate.act > now or (gate.soonest > 0 and gate.soonest <= now) then return nil end
local rules = gate.rules
for i = 1, #rules do
  local cost = tonumber(ARGV[8 + i])
  if cost > rules[i].capacity or (cost > 0 and rules[i]:ready(cost, now) ~= now) then return nil end
end
for i = 1, #rules do
  local cost = tonumber(ARGV[8 + i])
  if cost > 0 then rules[i]:take(cost, now, now) end
end
gate.t, gate.act, gate.fence = now, now, math.max(gate.fence + 1, now)
Promises.hold(SESSION .. ':' .. ARGV[7] .. ':' .. ARGV[8], now)

alive_until = Promises.attend(alive_until)
local extended = Promises.extend()
local moment = State.int(now)
local answered = table.concat(
  { SESSION, ARGV[4], 'ok', moment, '-1 0 grant 1', moment, State.int(gate.fence), '|' }, ' ')
redis.call('HSET', HASH, 'state', Rules.save(), 'r' .. SESSION, ARGV[4] .. ' ' .. State.int(alive_until) .. ' ' .. answered)
Promises.keep(extended)
return answered
