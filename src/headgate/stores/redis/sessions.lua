-- Sessions, holders and mail: who asks, who is alive, who holds what until when, and what was granted behind somebody's back.
--
-- A session is one event loop's talk about one name. It numbers its calls, and its last reply is kept: a call that arrives twice
-- is answered from there, one that arrives after a later one changes nothing (S3, T10). A session that waits and falls silent for
-- WAITER loses its places (L3).

local alive_seen, own_mail, others_mail

function Sessions.fresh()
  alive_seen, own_mail, others_mail = { [SESSION] = NEVER }, {}, {}
end

-- Until when a session is alive, if it is.
function Sessions.alive(session)
  local known = alive_seen[session]
  if known == nil then
    local t = Who.alive_until(session)
    known = t and t > gate.t and t
    alive_seen[session] = known
  end
  return known
end

-- A session whose places are lost is not known any more: if it lives after all, it is asked who it is, and queues again.
function Sessions.quit(session)
  alive_seen[session] = false
  Who.end_session(session, gate.t)
  redis.call('HDEL', HASH, 'm' .. session)
  local record = redis.call('HGET', HASH, 'r' .. session)
  if not record then return end
  local _, number, at = Calls.recorded(record)
  redis.call('HSET', HASH, 'r' .. session, Calls.record(0, number, string.sub(record, at)))
end

-- A thread has given up a call that may still be on its way, on a connection that was cut (F25): it comes too late now. The calls and
-- callers of a thread's session have the same numbers, and it ends with ".0".
function Sessions.forbid(session, number)
  if string.sub(session, -2) ~= '.0' then return end
  local record = redis.call('HGET', HASH, 'r' .. session)
  local last = record and select(2, Calls.recorded(record)) or 0
  if last >= tonumber(number) then return end
  redis.call('HSET', HASH, 'r' .. session, Calls.record(0, number, session .. ' ' .. number .. ' late'))
  Who.keep_alive(session, gate.t)
end

-- Mail: grants that were made outside the answer to an acquire, "number moment fence lease" each, in their order. Those for
-- other sessions are kept for them until their next call, and announced: an announcement may be lost.

function Sessions.read_mail(text)
  for number, t, fence, lease in string.gmatch(text or '', '(%d+) (%-?%d+) (%d+) (%d+)') do
    own_mail[#own_mail + 1] = { number, t, fence, lease }
  end
end

function Sessions.deliver(caller, t, fence, its_lease)
  local session, number = State.session_of(caller), State.number_of(caller)
  local lease = State.int(its_lease or 0)
  if session == SESSION then
    own_mail[#own_mail + 1] = { number, State.int(t), State.int(fence), lease }
  else
    local mail = others_mail[session] or {}
    others_mail[session] = mail
    mail[#mail + 1] = number .. ' ' .. State.int(t) .. ' ' .. State.int(fence) .. ' ' .. lease
  end
end

-- The moment that mail brings for a caller of this session who has given up before reading it; 0: none.
function Sessions.recall(number)
  for i, grant in ipairs(own_mail) do
    if grant[1] == number then
      table.remove(own_mail, i)
      return tonumber(grant[2])
    end
  end
  return 0
end

function Sessions.announce_head(session, t)
  others_mail[session] = others_mail[session] or {}
  others_mail[session].head = State.int(t)
end

function Sessions.send_mail()
  for session, mail in pairs(others_mail) do
    local text = table.concat(mail, ' ')
    if #mail > 0 then
      local field = 'm' .. session
      redis.call('HSET', HASH, field, (redis.call('HGET', HASH, field) or '') .. text .. ' ')
    end
    local link = string.match(session, '^[^.]+')
    redis.pcall('PUBLISH', 'headgate:' .. link,
      table.concat({ HASH, session, State.int(gate.t), mail.head or '-1', text }, ' '))
  end
end

function Sessions.own_mail()
  local words = { '|' }
  for _, grant in ipairs(own_mail) do words[#words + 1] = table.concat(grant, ' ') end
  return table.concat(words, ' ')
end

-- Holders ---------------------------------------------------------------------------------------------------------------------

-- Returns what leases ended with; `soonest` is a lower bound of the next end, since renewals only move it on.
function Sessions.expire_holders()
  if gate.soonest == 0 or gate.soonest > gate.t then return end
  for _, caller in ipairs(Who.ended(gate.t)) do
    Sessions.let_go({ caller })
    Gate.release(State.units_of(caller), 1)
  end
  gate.soonest = Who.first_end()
end

-- Returns how many of them were held.
function Sessions.let_go(callers)
  local held = Who.drop_holders(callers)
  gate.held = gate.held - held
  return held
end

-- A concurrency limit that is new here may have been there before: who holds a permit of that time still does (S1).
function Sessions.count_holders(opened)
  if not next(opened) then return end
  Who.each_holder(function(caller)
    for i, cost in ipairs(State.costs_of(State.units_of(caller))) do
      if opened[i] then gate.rules[i].used = gate.rules[i].used + cost end
    end
  end)
end

-- Whoever holds a permit of a limit that was dropped goes on holding it: a limit that comes back has to count it (S1).
function Sessions.renew(caller, its_lease)
  local t, lease = Who.lease_end(caller), gate.rules.lease or its_lease
  if not t or t <= gate.t then return false end
  Who.prolong(caller, max(t, gate.t + lease))
  Promises.outlast(lease)
  return true
end

-- Keys can be lost one by one, to an operator or to eviction, and a command can be refused in the middle of a call. A state that is
-- remembered has been left by a call that was carried out, and a sum shows what was lost since; any other is counted through. What is
-- held is what the holders are; without a queue nobody waits, and who was seen before `born` is asked to queue again.
function Sessions.repair()
  local count = Who.count()
  if not gate.sessions or count ~= gate.queued + gate.held + gate.sessions then
    local queued, held = Who.count_waiters(), Who.count_holders()
    gate.sessions = count - queued - held
    if queued ~= gate.queued then Sessions.repair_queue(queued) end
    if held ~= gate.held then Sessions.repair_holders(held) end
  end
  lasts = gate.sessions > 0
end

function Sessions.repair_queue(queued)
  if queued < gate.queued then gate.born = gate.t end
  gate.queued = queued
  Gate.requeue()
end

function Sessions.repair_holders(held)
  local holds = {}
  for i, rule in ipairs(gate.rules) do
    if rule.holds then rule.used, holds[i] = 0, true end
  end
  Sessions.count_holders(holds)
  gate.held, gate.soonest = held, Who.first_end()
end

-- The queue's living -------------------------------------------------------------------------------------------------------

-- The head of the queue, past those who are dead and those whose cost no limit holds any more (they are told: moment -1).
function Sessions.head_of_queue()
  for _ = 1, CLEANUP do
    local caller = State.first_in_queue()
    if not caller then return nil end
    local dead = not Sessions.alive(State.session_of(caller))
    if not dead and not Gate.never(State.costs_of(State.units_of(caller))) then return caller end
    Gate.leave(caller)
    if dead then Sessions.quit(State.session_of(caller)) else Sessions.deliver(caller, -1, 0) end
  end
  return nil
end

-- Walks the queue for dead waiters, a stretch each call, once in WAITER if any session has died: a count of waiters is a count of live
-- ones. The dead are known for longer than that (KEEP).
function Sessions.sweep_queue()
  if gate.sweep > gate.t then return end
  if gate.cursor == 0 and not Who.silent_since(gate.t, 1)[1] then
    gate.sweep = gate.t + WAITER
    return
  end
  local callers = Who.ranked(gate.cursor, min(gate.cursor + CLEANUP, gate.queued) - 1)
  for _, caller in ipairs(callers) do
    if Sessions.alive(State.session_of(caller)) then
      gate.cursor = gate.cursor + 1
    else
      Gate.leave(caller)
      Sessions.quit(State.session_of(caller))
    end
  end
  if #callers < CLEANUP then gate.sweep, gate.cursor = gate.t + WAITER, 0 end
end
