-- One call of a session: its operations in order, then the head of the queue, then the reply.
-- Everything is read and checked before the first write.
--
-- KEYS  1 HASH, 2 MEMBERS (prelude.lua)
-- ARGV  1 program        the limits as text; "": the session knows none
--       2 session
--       3 call           its number
--       4 declares       the limits are 0 known, 1 declared, 2 updated, 3 asked for (this creates
--                        no name), 4 offered (any declaration replaces them). Threads declare
--                        limits only where no others hold
--       5 received       how the last reply began that the session received, "call ok now";
--                        0: none, or long ago
--       6 flags          the sum of 1: the session has waiters, 2: this server notifies it, 4: this
--                        is a server of a Cluster
--       7 reserve_ahead  how far ahead a moment may be granted now
--       8... operations  verb word... (operations.lua)
--
-- The reply begins with session and number, so that a client notices a reply to another call:
--   session number ok now head mine answers | outbox
--   session number late            the call came after a later one
--   session number lapsed          the session is over: its process begins another one
--   session number stale limits    these limits hold
--   session number offer limits    these are offered, and no process has declared any
--   session number held wait limits    these limits hold, and those of the call may be declared
--                                  after `wait`; -1: an update overrules them
--   session number unknown         no process has declared limits
-- Only `ok` means that something was done. Moments and fences in a reply are relative to `now`.

Main = {}

-- Ends the session. Its record then rejects copies of this call and of earlier ones. Without a
-- record, this server never knew the session, and has nothing to reject.
local function lapse(record)
  Sessions.leave(SESSION)
  if record then Sessions.write_record(SESSION, gate.t, CALL, 0, false, 'lapsed') end
  Expiry.extend()
  redis.call('HSET', HASH, 'state', State.save())
  Expiry.write()
  return ReplyCache.reply('lapsed')
end

local head_notified -- the field `told`

-- A client has created the keys that were missing while the slot moved (node.py).
local function drop_placeholders()
  head_notified = nil
  redis.call('HDEL', HASH, 'told')
  Membership.drop_placeholder()
end

-- Makes the state ready for the operations, or returns a refusal. The second result is whether this
-- call creates it.
local function open_state(limits, state, alive_until, record, received, lost, waits)
  server_time = clock()
  local offer = not limits and state and redis.call('HGET', HASH, 'offer')
  limits = limits or offer
  if not (limits and state and State.load(limits, state)) then
    if received ~= '0' then return ReplyCache.reply('lapsed') end
    if DECLARES == ASKED or PROGRAM == '' then return ReplyCache.reply('unknown') end
    Setup.create(PROGRAM, server_time)
    gate.offered = DECLARES == OFFERED
    return nil, true
  end
  gate.offered = offer and true or false
  Gate.clamp(server_time)
  if gate.offered then
    -- A session that knows no limits gets these. With them it may ask for the status, and pause the
    -- keys that use them. A call that only asks gets them too, and does not replace them.
    local asks = PROGRAM == '' or (DECLARES == ASKED and limits ~= PROGRAM)
    if asks then return ReplyCache.reply('offer ' .. limits) end
  elseif limits ~= PROGRAM then
    -- All declarations of a process must come from one client (limits_history.lua). The session of
    -- its threads is another client. So threads let the portal's session replace limits.
    local replaces = DECLARES == DECLARED and not Sessions.is_of_threads(SESSION)
    if not replaces and DECLARES ~= UPDATED then return ReplyCache.reply('stale ' .. limits) end
    local hold = LimitsHistory.hold_time()
    if hold then return ReplyCache.reply('held ' .. Numbers.text(hold) .. ' ' .. limits) end
  end
  Sessions.forget_expired_members()
  if head_notified == '' then drop_placeholders() end
  Repair.run()
  -- The places of the session may be gone. Either it was silent for long, or waiters were lost at
  -- `restarted_at`, and it has not called since. The first call after `restarted_at` lets a session
  -- live for SESSION_LIFE from then on, or longer (Sessions.stay_alive).
  local silent = alive_until <= gate.t or alive_until < gate.restarted_at + SESSION_LIFE
  if (waits and silent) or lost then return lapse(record) end
  return nil
end

-- A session that waits calls again after this time at the latest (HEARTBEAT in session/polls.py).
local SOON = 0.3 * SESSION_LIFE

-- Whether the head's session was notified of `t`, or of an earlier moment that is still to come. It
-- calls at the moment that it was notified of.
local function was_notified(id, t)
  local id_notified, moment = string.match(head_notified or '', '^(.*) (%d+)$')
  moment = tonumber(moment)
  return id_notified == id and moment <= t and (moment == t or moment > gate.t)
end

-- Returns `head mine` of the reply. Notifies the head's session if needed.
local function look_at_head(id, t)
  -- Requests of expired sessions still stand before the head, so this session calls again at once.
  if not id then return gate.queued > 0 and '0 1' or '-1 0' end
  if t >= NEVER then t = Holders.next_expiry(SOON) or gate.t + SESSION_LIFE end
  id = Queue.first_awake(id)
  local session = RequestId.session(id)
  local delay = max(0, t - gate.t)
  if session == SESSION then return Numbers.text(delay) .. ' 1' end
  if t < gate.t + SOON and not was_notified(id, t) then
    head_notified = id .. ' ' .. Numbers.text(t)
    redis.call('HSET', HASH, 'told', head_notified)
    Outbox.add_head(session, delay)
  end
  return Numbers.text(delay) .. ' 0'
end

-- The session of the request may be dead, so the lease ends when the session expires (L3).
local function grant(id, t, fence)
  Queue.pass()
  local whole = gate.rules.lease
  local lease = whole and min(whole, Sessions.alive_until(RequestId.session(id)) - gate.t)
  if lease then Holders.add({ id }, t, lease, lease < whole) end
  Outbox.add(id, t - gate.t, fence - gate.t, lease or 0)
end

local function advance()
  if gate.queued == 0 then return '-1 0' end
  local id, t = Gate.advance(RESERVE_AHEAD, Queue.head, grant)
  Queue.write_passed()
  Holders.write()
  return look_at_head(id, t)
end

-- A name that was only paused or drained has an offer until an acquire or update declares limits.
local function limits_field()
  if not gate.offered then return 'limits' end
  if DECLARES == ASKED or DECLARES == OFFERED then return 'offer' end
  redis.call('HDEL', HASH, 'offer')
  return 'limits'
end

-- No process has declared an offer, so the history does not note its replacement.
local function update_limits()
  if (gate.program ~= PROGRAM and not gate.offered) or DECLARES == UPDATED then
    LimitsHistory.replace(gate.program)
  elseif DECLARES == DECLARED then
    LimitsHistory.confirm()
  end
  if gate.program ~= PROGRAM then Setup.follow() end
end

-- The limits are written only if they change.
local function write(limits_stay, state, reply_field, record)
  if limits_stay then
    redis.call('HSET', HASH, 'state', state, reply_field, record)
  else
    redis.call('HSET', HASH, limits_field(), PROGRAM, 'state', state, reply_field, record)
  end
  Expiry.write()
end

function Main.run(its_keys, its_args)
  begin(its_keys, its_args)
  local received, flags = args[5], Numbers.parse(args[6])
  local waits, notified = flags % 2 == 1, flags % 4 >= 2
  DECLARES, RESERVE_AHEAD, CLUSTERED = args[4], Numbers.parse(args[7]), flags >= 4
  Queue.reset()
  Holders.reset()
  Sessions.reset()
  Operations.read()
  local reply_field, outbox_field = 'r' .. SESSION, 'm' .. SESSION
  local limits, state, record, kept, told =
    unpack(redis.call('HMGET', HASH, 'limits', 'state', reply_field, outbox_field, 'told'))
  head_notified = told
  local former, alive_until, last, last_now = ReplyCache.recall(record)
  if former then return former end
  local lost = received ~= '0' and not ReplyCache.was_received(last, last_now, received)
  local refusal, is_new = open_state(limits, state, alive_until, record, received, lost, waits)
  if refusal then return refusal end

  if is_new then -- these were of an earlier state
    record, kept, head_notified, alive_until = nil, nil, nil, 0
  end
  Tidy.note(record, kept, head_notified)
  Outbox.reset(kept)
  Holders.expire()
  update_limits()
  if gate.queued > 0 then Queue.sweep() end
  local answers = Operations.run()
  local head = advance()
  while Outbox.send() do -- the grants of a suspect session may have ended
    Holders.expire()
    head = advance()
  end
  -- The state has the name's own pause alone.
  if gate.whole_pause > gate.t then Gate.pause_whole(0) end
  -- A session that ended itself in this call stays ended.
  alive_until = Sessions.alive_until(SESSION) and Sessions.stay_alive(alive_until) or 0
  if DECLARES == UPDATED then Expiry.outlast(DAY) end
  local was_large = alive_until > 0 and Tidy.run()
  Expiry.extend()
  local words = head .. ' ' .. answers .. (answers == '' and '|' or ' |') .. Outbox.own()
  local new_record = ReplyCache.pack(gate.t, CALL, alive_until, notified, words)
  Tidy.note(new_record) -- other calls may remove it when the session is silent
  local state = State.save()
  if kept then redis.call('HDEL', HASH, outbox_field) end
  if was_large then Tidy.rewrite(state, reply_field, new_record) end
  write(limits == PROGRAM and not is_new, state, reply_field, new_record)
  return ReplyCache.done(gate.t, words)
end
