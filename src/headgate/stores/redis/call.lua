-- One call: what a session asks together, decided in order, and the reply. Everything is read and checked before the first write.
--
-- The reply starts with session and number, so that a reply that went astray is noticed: "session number ok now head mine answers |
-- mail", or "... late", "... lapsed" (who are you now?), "... stale limits" (do you know?), when nothing was done.

local function reply(...)
  return table.concat({ SESSION, ARGV[4], ... }, ' ')
end

-- When the head should be looked at again, and by whom; its session is told if it is another one that does not know yet.
local function look_at_head(known)
  local caller = Sessions.head_of_queue()
  if not caller then return State.queue_length() > 0 and State.int(gate.t) .. ' 1' or '-1 0' end -- more dead than one call drops
  local t = Gate.next_at()
  if t >= NEVER then t = gate.soonest > 0 and gate.soonest or gate.t + WAITER end
  local session = State.session_of(caller)
  if session == SESSION then return State.int(t) .. ' 1' end
  local told = caller .. ' ' .. State.int(t)
  if told ~= known then
    redis.call('HSET', HASH, 'told', told)
    Sessions.announce_head(session, t)
  end
  return State.int(t) .. ' 0'
end

local requests = Requests.read()
local stored = redis.call('HMGET', HASH, 'limits', 'state', 'r' .. SESSION, 'm' .. SESSION, 'told')
local program, state, record, mail = stored[1], stored[2], stored[3], stored[4]
local alive_until = 0

if record then
  local last, until_moment, former = string.match(record, '^(%d+) (%d+) (.*)$')
  if CALL == tonumber(last) then return former end
  if CALL < tonumber(last) then return reply('late') end
  alive_until = tonumber(until_moment)
end

local now = clock()
if state then
  Rules.load(state)
  Gate.clamp(now)
  if program ~= PROGRAM and not DECLARES then return reply('stale', program) end
  Sessions.repair()
  if WAITS and alive_until <= math.max(gate.t, gate.born + WAITER) then
    redis.call('HSET', HASH, 'state', Rules.save())
    return reply('lapsed')
  end
elseif WAITS then
  return reply('lapsed')
else
  Rules.new(PROGRAM, now)
end

if mail then Sessions.read_mail(mail) end
Sessions.expire_holders()
if state and program ~= PROGRAM then Gate.follow(Rules.parsed(PROGRAM)) end
if State.queue_length() > 0 then Sessions.sweep_queue() end
local answers = Requests.answers(requests)
local head = '-1 0'
if State.queue_length() > 0 then
  Gate.advance(HORIZON, function(caller, t, fence)
    Promises.hold(caller, t)
    Sessions.deliver(caller, t, fence)
  end)
  head = look_at_head(stored[5])
end
Sessions.send_mail()
alive_until = Promises.attend(alive_until)
local extended = Promises.extend()
local answered = reply('ok', State.int(gate.t), head, answers .. (answers == '' and '' or ' ') .. Sessions.own_mail())
redis.call('HSET', HASH, 'limits', PROGRAM, 'state', Rules.save(), 'r' .. SESSION,
  ARGV[4] .. ' ' .. State.int(alive_until) .. ' ' .. answered)
if mail then redis.call('HDEL', HASH, 'm' .. SESSION) end
Promises.keep(extended)
return answered
