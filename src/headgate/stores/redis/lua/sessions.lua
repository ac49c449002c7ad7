-- Sessions: one event loop's conversation about one name. A session that waits and sends no call
-- expires, and loses its places (L3). A call extends its life to SESSION_LIFE only if less than
-- three quarters of that are left. So it expires 7.5 to 10 s after its last call.

Sessions = {}

local RECORD = string.byte('r')
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

local function alive_by_record(session)
  return (select(3, ReplyCache.unpack(record_of(session))))
end

local BATCH = 500 -- sessions that one HDEL forgets

local function forget(sessions)
  for first = 1, #sessions, BATCH do
    local fields = {}
    for i = first, min(first + BATCH - 1, #sessions) do
      fields[#fields + 1], fields[#fields + 2] = 'r' .. sessions[i], 'm' .. sessions[i]
    end
    redis.call('HDEL', HASH, unpack(fields))
  end
end

-- The other sessions that have a record, and whether this one has.
local function recorded()
  local others, own = {}, false
  for _, field in ipairs(redis.call('HKEYS', HASH)) do
    if string.byte(field) == RECORD then
      local session = string.sub(field, 2)
      if session == SESSION then own = true else others[#others + 1] = session end
    end
  end
  return others, own
end

-- Makes MEMBERS, if there is none: a request waits or holds, or there are several sessions.
function Sessions.enlist()
  if gate.members_end > 0 then return end
  gate.members_end = gate.t -- not 0, because MEMBERS exists now; Expiry.extend sets the true end
  local sessions, own = recorded()
  if own then sessions[#sessions + 1] = SESSION end
  for _, session in ipairs(sessions) do
    local alive_until = alive_by_record(session)
    if alive_until > 0 then Membership.keep_alive(session, alive_until) end -- 0: it is over
  end
end

function Sessions.members_expired()
  return gate.members_end > 0 and gate.members_end <= server_time
end

-- MEMBERS is gone: there are no waiters.
local function be_alone()
  gate.members_end, gate.converted, gate.queued, gate.next_expiry = 0, nil, 0, 0
  gate.last_place, gate.next_sweep, gate.sweep_cursor = 0, 0, 0
end

-- Removes MEMBERS if the session that calls is its only member. The record says that it is alive.
function Sessions.leave_alone()
  if CLUSTERED or gate.sessions ~= 1 then return end
  Membership.remove_session(SESSION)
  if gate.sessions == 0 then be_alone() end
end

-- MEMBERS has expired: only the records of its sessions are left, and no request waits or holds.
function Sessions.forget_expired_members()
  if not Sessions.members_expired() then return end
  Membership.count() -- raises WRONGTYPE if MEMBERS belongs to another program
  redis.call('DEL', MEMBERS)
  be_alone()
  Gate.requeue(function() end) -- no request waits; Repair.run counts the holders
  forget((recorded()))
end

-- Whether no other session has a record. Forgets long silent ones.
local function is_alone()
  local silent, others = {}, recorded()
  for _, session in ipairs(others) do
    if alive_by_record(session) <= gate.t - KEEP then silent[#silent + 1] = session end
  end
  forget(silent)
  return #silent == #others
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
  -- After waiters were lost, the first call of each session extends its life. So open_state() in
  -- main.lua can tell whether it has called since.
  local enough = alive_until >= gate.t + 0.75 * SESSION_LIFE
  if enough and alive_until >= gate.restarted_at + SESSION_LIFE then return alive_until end
  -- Without MEMBERS, a session that has a record is the only one.
  local alone = gate.members_end == 0 and not CLUSTERED and (alive_until > 0 or is_alone())
  if alone then return gate.t + SESSION_LIFE end
  Sessions.enlist()
  Membership.keep_alive(SESSION, gate.t + SESSION_LIFE)
  for _, session in ipairs(Membership.silent_since(gate.t - KEEP, CLEANUP)) do
    Membership.remove_session(session)
    forget({ session })
  end
  return gate.t + SESSION_LIFE
end

-- Ends a session whose places are lost. If its process lives, the next reply to it is `lapsed`, and
-- it queues again as another session.
function Sessions.leave(session)
  note(session, false)
  Sessions.enlist()
  Membership.end_session(session, gate.t)
  redis.call('HDEL', HASH, 'm' .. session)
  local record = record_of(session)
  if not record then return end
  local now, number, _, _, words = ReplyCache.unpack(record)
  Sessions.write_record(session, now, number, 0, false, words)
end

-- Whether this server notifies the session of grants, as its last call said.
function Sessions.is_notified(session)
  local record = record_of(session)
  return record and select(4, ReplyCache.unpack(record))
end

-- No connection received a notification: the process is dead, or its subscription broke. A living
-- session calls at least every 3 s (HEARTBEAT in session/polls.py), and at once when its
-- subscription breaks. So it is alive until UNHEARD after its last call. Returns that moment if it
-- has changed.
function Sessions.suspect(session)
  local record = record_of(session)
  if not record then return nil end
  local now, number, alive_until, is_notified, words = ReplyCache.unpack(record)
  local t = now + UNHEARD
  if not is_notified or alive_until <= t then return nil end
  Membership.end_session(session, t)
  Sessions.write_record(session, now, number, t, true, words)
  note(session, t > gate.t and t)
  return t
end

-- From now on, calls of the session up to this number get the reply `late`.
local function reject_calls(session, number)
  Sessions.enlist()
  Sessions.write_record(session, gate.t, number, 0, false, 'late')
  Membership.keep_alive(session, gate.t) -- stay_alive removes its record after KEEP
end

-- The process of a session has begun another one. Each call that still arrives is a late copy
-- (F25), even with a number that an older state does not know (S3).
function Sessions.quit(session)
  Sessions.leave(session)
  reject_calls(session, MOST)
end

-- Whether it is the session of a process's threads: its calls and requests have the same numbers.
function Sessions.is_of_threads(session)
  return string.sub(session, -2) == '.0'
end

-- The moment of the grant by a thread's call. 0: the call granted nothing, or a later one has
-- replaced its record.
function Sessions.granted_at(session, number)
  local record = Sessions.is_of_threads(session) and record_of(session)
  if not record then return 0 end
  local now, last, _, _, words = ReplyCache.unpack(record)
  local delay = last == number and string.match(words, '^%S+ %S+ grant 1 (%d+) ')
  return delay and now + tonumber(delay) or 0
end

-- A thread has given up a call that may still arrive, on a connection that was cut (F25). If it has
-- arrived, its grant is undone, and the record must not name the grant again (S3).
function Sessions.reject_call(session, number)
  if not Sessions.is_of_threads(session) then return end
  local record = record_of(session)
  local last = record and select(2, ReplyCache.unpack(record)) or 0
  if last <= number then reject_calls(session, number) end
end
