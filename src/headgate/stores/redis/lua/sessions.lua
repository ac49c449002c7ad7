-- Sessions: one event loop's conversation about one name. A session that waits and sends no call
-- expires, and loses its places (L3). A call extends its life to WAITER only if less than three
-- quarters of that are left. So it expires 7.5 to 10 s after its last call.

Sessions = {}

local alive_seen -- until when sessions are alive; false: they are not

function Sessions.reset()
  alive_seen = nil
end

local function note(session, alive_until)
  alive_seen = alive_seen or {}
  alive_seen[session] = alive_until
end

local function record_of(session)
  return redis.call('HGET', HASH, 'r' .. session)
end

function Sessions.write_record(session, ...)
  redis.call('HSET', HASH, 'r' .. session, ReplyCache.pack(...))
end

function Sessions.alive_until(session)
  local known = alive_seen and alive_seen[session]
  if known == nil then
    if session == SESSION then return NEVER end
    local t = Membership.alive_until(session)
    known = t and t > gate.t and t
    note(session, known)
  end
  return known
end

-- Returns until when the session that calls is alive now. Removes long silent sessions.
function Sessions.stay_alive(alive_until)
  local enough = alive_until >= gate.t + 0.75 * WAITER
  if enough and alive_until >= gate.restarted_at + WAITER then return alive_until end
  Membership.keep_alive(SESSION, gate.t + WAITER)
  for _, session in ipairs(Membership.silent_since(gate.t - KEEP, CLEANUP)) do
    Membership.remove_session(session)
    redis.call('HDEL', HASH, 'r' .. session, 'm' .. session)
  end
  return gate.t + WAITER
end

-- Ends a session whose places are lost. If its process lives, the next reply to it is `lapsed`, and
-- it queues again as another session.
function Sessions.leave(session)
  note(session, false)
  Membership.end_session(session, gate.t)
  redis.call('HDEL', HASH, 'm' .. session)
  local record = record_of(session)
  if not record then return end
  local _, number, _, at = ReplyCache.unpack(record)
  Sessions.write_record(session, 0, number, 0, string.sub(record, at))
end

function Sessions.is_notified(session)
  local record = record_of(session)
  return record and select(3, ReplyCache.unpack(record)) > 0
end

-- No connection received a notification: the process is dead, or its subscription broke. A living
-- session calls at least every 3 s (HEARTBEAT in session/polls.py), and at once when its
-- subscription breaks. So it is alive until UNHEARD after its last call. Returns that moment if it
-- has changed.
function Sessions.suspect(session)
  local record = record_of(session)
  if not record then return nil end
  local alive_until, number, notified_at, at = ReplyCache.unpack(record)
  local t = notified_at + UNHEARD
  if notified_at == 0 or alive_until <= t then return nil end
  Membership.end_session(session, t)
  Sessions.write_record(session, t, number, notified_at, string.sub(record, at))
  note(session, t > gate.t and t)
  return t
end

-- The calls of a session up to this number come too late.
local function reject_calls(session, number)
  Sessions.write_record(session, 0, number, 0, session .. ' ' .. number .. ' late')
  Membership.keep_alive(session, gate.t) -- stay_alive removes its record after KEEP
end

-- The process of a session has begun another one. Each call that still arrives is a late copy
-- (F25), even with a number that an older state does not know (S3).
function Sessions.quit(session)
  Sessions.leave(session)
  reject_calls(session, Numbers.text(MOST))
end

-- A thread has given up a call that may still arrive, on a connection that was cut (F25). The
-- session of threads ends with ".0", and its calls and requests have the same numbers.
function Sessions.reject_call(session, number)
  if string.sub(session, -2) ~= '.0' then return end
  local record = record_of(session)
  local last = record and select(2, ReplyCache.unpack(record)) or 0
  if last < tonumber(number) then reject_calls(session, number) end
end
