-- One call: what a session asks together, decided in order, and the reply. Everything is read and checked before the first write.
--
-- The reply starts with session and number, so that a reply that went astray is noticed: "session number ok now head mine answers |
-- mail", or "... late", "... lapsed" (who are you now?), "... stale limits" (do you know?), "... held wait limits" (not those
-- of yours, for so long), "... unknown" (no process has declared any), when nothing was done.
--
-- args: as in shared.lua, 4 whether the limits are just known (0), declared (1), updated (2), asked for (3) or offered (4), 5 how the
-- last reply that the session heard began ("number ok now"), or 0 if that was long ago, 6 what the session is (0): it has waiters (1),
-- and this server notifies it (2), or both (3), 7 horizon, 8... requests: verb word...
--
-- Moments and fences in a reply are told as what they are beyond `now`: mostly that is nothing.

local WAITS, LISTENS = { ['1'] = true, ['3'] = true }, { ['2'] = true, ['3'] = true }

-- The session is over: it asks by another name from now on, and a copy of an earlier call comes too late.
local function lapse(record)
  local lapsed = Calls.reply('lapsed')
  Sessions.quit(SESSION)
  if record then redis.call('HSET', HASH, 'r' .. SESSION, Calls.record(0, CALL, 0, lapsed)) end
  redis.call('HSET', HASH, 'state', Numbers.save())
  return lapsed
end

-- Makes the state ready for the requests, or says why they cannot be answered.
local function open_state(program, state, alive_until, record)
  local now, heard, waits, how = clock(), args[5], WAITS[args[6]], args[4]
  local offer = not program and state and redis.call('HGET', HASH, 'offer')
  program = program or offer
  if not (program and state and Numbers.load(program, state)) then
    if heard ~= '0' then return Calls.reply('lapsed') end
    if how == ASKED or PROGRAM == '' then return Calls.reply('unknown') end
    Rules.new(PROGRAM, now)
    gate.offered = how == OFFERED
    return nil
  end
  gate.offered = offer and true or false
  Gate.clamp(now)
  if gate.offered then
    if PROGRAM == '' then return Calls.reply('unknown') end
  elseif program ~= PROGRAM then
    if how ~= DECLARED and how ~= UPDATED then return Calls.reply('stale ' .. program) end
    local held = Rules.held()
    if held then return Calls.reply('held ' .. State.int(held) .. ' ' .. program) end
  end
  Sessions.repair()
  local silent = alive_until <= gate.t or alive_until < gate.born + WAITER
  if (waits and silent) or (heard ~= '0' and not Calls.heard(record, heard)) then return lapse(record) end
  return nil
end

local SOON = 0.3 * WAITER -- whoever waits asks by itself after that (session.py, HEARTBEAT)

local told -- the head that was announced last, and for when

-- Whether its session was told to ask then, or before: it will hear of a later moment when it does.
local function was_told(caller, t)
  local whom, moment = string.match(told or '', '^(.*) (%d+)$')
  moment = tonumber(moment)
  return whom == caller and moment <= t and (moment == t or moment > gate.t)
end

-- When the head should be looked at again, and by whom; its session is told if it is another one that does not know yet, and would not
-- ask by itself before.
local function look_at_head(caller, t)
  if not caller then return State.queue_length() > 0 and '0 1' or '-1 0' end -- more dead than one call drops
  if t >= NEVER then t = Sessions.next_end(SOON) or gate.t + WAITER end
  caller = Sessions.first_awake(caller)
  local session = State.session_of(caller)
  local away = max(0, t - gate.t)
  if session == SESSION then return State.int(away) .. ' 1' end
  if t < gate.t + SOON and not was_told(caller, t) then
    told = caller .. ' ' .. State.int(t)
    redis.call('HSET', HASH, 'told', told)
    Sessions.announce_head(session, away)
  end
  return State.int(away) .. ' 0'
end

-- Another session may be dead: it has what it is granted for as long as it would have had its place (L3).
local function granted(caller, t, fence)
  local lease = gate.rules.lease
  if lease then
    lease = min(lease, Sessions.alive(State.session_of(caller)) - gate.t)
    Promises.hold({ caller }, t, lease)
  end
  Sessions.deliver(caller, t - gate.t, fence - gate.t, lease or 0)
end

local function advance()
  if State.queue_length() == 0 then return '-1 0' end
  local caller, t = Gate.advance(HORIZON, granted)
  State.write_passed()
  Promises.write_holds()
  return look_at_head(caller, t)
end

-- The limits of a name that was only paused or drained are nobody's: the first acquire or update declares its own.
local function limits_field()
  if not gate.offered then return 'limits' end
  if args[4] == ASKED or args[4] == OFFERED then return 'offer' end
  redis.call('HDEL', HASH, 'offer')
  return 'limits'
end

function Calls.whole(its_keys, its_args)
  begin(its_keys, its_args)
  State.fresh()
  Promises.fresh()
  Sessions.fresh()
  Requests.fresh()
  Requests.read()
  local stored = redis.call('HMGET', HASH, 'limits', 'state', 'r' .. SESSION, 'm' .. SESSION, 'told')
  local program, state, mail = stored[1], stored[2], stored[4]
  local former, alive_until = Calls.recall(stored[3])
  local refusal = former or open_state(program, state, alive_until, stored[3])
  if refusal then return refusal end

  if mail then Sessions.read_mail(mail) end
  Sessions.expire_holders()
  if (gate.program ~= PROGRAM and not gate.offered) or args[4] == UPDATED then
    Rules.replace(gate.program)
  elseif args[4] == DECLARED then
    Rules.confirm()
  end
  if gate.program ~= PROGRAM then Gate.follow(PROGRAM) end
  if State.queue_length() > 0 then Sessions.sweep_queue() end
  local answers = Requests.answers()
  told = stored[5]
  local head = advance()
  while Sessions.send_mail() do -- a session is found dead: what it was granted may have ended
    Sessions.expire_holders()
    head = advance()
  end
  alive_until = Sessions.alive(SESSION) and Promises.attend(alive_until) or 0
  if args[4] == UPDATED then Promises.outlast(DAY) end
  local extended = Promises.extend()
  local answered = Calls.reply('ok ') .. State.int(gate.t) .. ' ' .. head .. ' ' .. answers .. (answers == '' and '|' or ' |')
    .. Sessions.own_mail()
  local listened = LISTENS[args[6]] and gate.t or 0
  redis.call('HSET', HASH, limits_field(), PROGRAM, 'state', Numbers.save(), 'r' .. SESSION,
    Calls.record(alive_until, CALL, listened, answered))
  if mail then redis.call('HDEL', HASH, 'm' .. SESSION) end
  Promises.keep(extended)
  return answered
end
