-- Sessions, holders and mail: who asks, who is alive, who holds what until when, and what was granted behind somebody's back.
--
-- A session is one event loop's talk about one name. It numbers its calls, and its last reply is kept: a call that arrives twice
-- is answered from there, one that arrives after a later one changes nothing (S3, T10). A session that waits and falls silent for
-- WAITER loses its places (L3).

local gone -- this session has quit
local alive_seen -- until when others are alive

-- Until when a session is alive, if it is.
function Sessions.alive(session)
  if session == SESSION then return not gone and NEVER end
  alive_seen = alive_seen or {}
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
  if session == SESSION then
    gone = true
  else
    alive_seen = alive_seen or {}
    alive_seen[session] = false
  end
  Who.end_session(session, gate.t)
  redis.call('HDEL', HASH, 'm' .. session)
  local record = redis.call('HGET', HASH, 'r' .. session)
  if not record then return end
  local _, number, _, at = Calls.recorded(record)
  redis.call('HSET', HASH, 'r' .. session, Calls.record(0, number, 0, string.sub(record, at)))
end

-- Gives back what a session that is over holds, but for the numbers in `kept`: where the state has gone back, its releases were lost.
function Sessions.keep_only(session, kept)
  local known, dropped, beginning = {}, {}, session .. ':'
  for number in string.gmatch(kept, '%d+') do known[number] = true end
  Who.each_holder(function(caller)
    local its = string.sub(caller, 1, #beginning) == beginning
    if its and not known[State.number_of(caller)] then dropped[#dropped + 1] = caller end
  end)
  for _, caller in ipairs(dropped) do
    Gate.release(State.asked_of(caller), Sessions.let_go({ caller }))
  end
end

-- A thread has given up a call that may still be on its way, on a connection that was cut (F25): it comes too late now. The calls and
-- callers of a thread's session have the same numbers, and it ends with ".0".
function Sessions.forbid(session, number)
  if string.sub(session, -2) ~= '.0' then return end
  local record = redis.call('HGET', HASH, 'r' .. session)
  local last = record and select(2, Calls.recorded(record)) or 0
  if last >= tonumber(number) then return end
  redis.call('HSET', HASH, 'r' .. session, Calls.record(0, number, 0, session .. ' ' .. number .. ' late'))
  Who.keep_alive(session, gate.t)
end

-- Mail: grants that were made outside the answer to an acquire, in their order, runs of neighbours as one: "number count moment fence
-- lease", both what they are beyond the `now` of the call that made them; moment -1: it can never pass. That of others is kept for them
-- until their next call, as " @now" and then what was granted there, and announced: an announcement may be lost. At the end of both
-- stands "!" and for how long all are paused, if they are.

local TOLD = 1000 -- sessions that are told of a pause (S9)
local pause_told -- what this call says of a pause, whatever it books behind that
local inbox, boxes -- what was kept for this session; what this call grants, by session
local session_told, number_told, count_told, t_told, fence_told, lease_told -- the run that is being counted

function Sessions.fresh()
  gone, alive_seen, inbox, boxes, session_told, pause_told = false, nil, nil, nil, nil, nil
end

function Sessions.read_mail(text)
  inbox = text
end

local function box_of(session)
  boxes = boxes or {}
  boxes[session] = boxes[session] or {}
  return boxes[session]
end

local function letter(number, count, t, fence, lease)
  return State.int(number) .. ' ' .. State.int(count) .. ' ' .. State.int(t) .. ' ' .. State.int(fence) .. ' ' .. State.int(lease)
end

local function seal()
  if not session_told then return end
  local box = box_of(session_told)
  box[#box + 1] = letter(number_told, count_told, t_told, fence_told, lease_told)
  session_told = nil
end

-- Neighbours of one session whom one call grants the same moment have fences one after another, and the same lease.
function Sessions.deliver(caller, t, fence, lease)
  local session, number = State.session_of(caller), tonumber(State.number_of(caller))
  if session == session_told and number == number_told + count_told and t == t_told and t >= 0 then
    count_told = count_told + 1
  else
    seal()
    session_told, number_told, count_told, t_told, fence_told, lease_told = session, number, 1, t, fence, lease
  end
end

-- The letter without one of the callers that it names.
local function torn(number, first, count, t, fence, lease)
  local before, text = number - first, ''
  if before > 0 then text = ' ' .. letter(first, before, t, fence, lease) end
  if before < count - 1 then text = text .. ' ' .. letter(number + 1, count - before - 1, t, fence + before + 1, lease) end
  return text
end

-- The moment that mail brings for a caller of this session who has given up before reading it; 0: none.
function Sessions.recall(number)
  local found = 0
  number = tonumber(number)
  inbox = inbox and string.gsub(inbox, '@(%d+)([^@]*)', function(now, letters)
    return '@' .. now .. string.gsub(letters, ' (%d+) (%d+) (%-?%d+) (%d+) (%d+)', function(first, count, t, fence, lease)
      first, count, t = tonumber(first), tonumber(count), tonumber(t)
      if found ~= 0 or number < first or number >= first + count then return nil end
      found = t < 0 and t or now + t
      return torn(number, first, count, t, tonumber(fence), tonumber(lease))
    end)
  end)
  return found
end

function Sessions.announce_head(session, away)
  box_of(session).head = State.int(away)
end

-- To all who may sleep for a moment that was granted before; whoever does not hear of it hears by the next reply. 0: a pause was ended.
function Sessions.announce_pause(left)
  pause_told = ' !' .. State.int(left)
  for _, session in ipairs(Who.alive_at(gate.t, TOLD)) do box_of(session).paused = true end
end

-- For how long nobody passes, if not only because something is booked.
local function pause_left()
  local left = Gate.pause_left()
  return pause_told or (left > 0 and ' !' .. State.int(left)) or ''
end

-- The end of a session that subscribes to sharded channels, one for each name, on its server; and to the one of its link.
local SHARDED = string.byte('s')

-- Whether a session said in its last call that this server notifies it.
local function listens(session)
  local record = redis.call('HGET', HASH, 'r' .. session)
  return record and select(3, Calls.recorded(record)) > 0
end

-- Returns how many connections to this server have received it; an error if the user may not publish. While a slot moves, this server
-- may have the name, and the session may still be subscribed where it was: PUBLISH reaches the subscribers of all servers.
local function notify(session, text)
  local link = string.match(session, '^[^.]+')
  if string.byte(session, -1) == SHARDED then
    local received = redis.pcall('SPUBLISH', HASH .. ':' .. link, text)
    local counts = type(received) == 'number' -- or the server is too old for it
    if counts and (received > 0 or listens(session)) then return received end
    redis.pcall('PUBLISH', 'headgate:' .. link, text)
    return nil -- other servers may have receivers
  end
  return redis.pcall('PUBLISH', 'headgate:' .. link, text)
end

-- What a session was granted by this call ends when the session does: in the letters of its box, and in the leases.
local function shorten(session, box, lease)
  local ends, beginning = {}, session .. ':'
  for i, text in ipairs(box) do
    local first, count, t, fence, its = string.match(text, '^(%d+) (%d+) (%-?%d+) (%d+) (%d+)$')
    if tonumber(its) > lease then
      first, count, t = tonumber(first), tonumber(count), tonumber(t)
      for number = first, first + count - 1 do ends[State.int(number)] = gate.t + t + lease end
      box[i] = letter(first, count, t, tonumber(fence), lease)
    end
  end
  if not next(ends) then return end
  local callers = {}
  Who.each_holder(function(caller)
    local its = string.sub(caller, 1, #beginning) == beginning
    if its and ends[State.number_of(caller)] then callers[#callers + 1] = caller end
  end)
  for _, caller in ipairs(callers) do
    local t = ends[State.number_of(caller)]
    Who.prolong(caller, t)
    gate.soonest = min(gate.soonest, t)
  end
end

-- A session said that this server notifies it, and now no connection receives its notification. So its process is dead, or its
-- subscription broke. A session that lives calls at least every 3 s (HEARTBEAT in session.py), and at once when its subscription breaks:
-- it counts as alive until UNHEARD after its last call. Returns whether that is new.
local function doubt(session, box)
  local record = redis.call('HGET', HASH, 'r' .. session)
  if not record then return false end
  local alive_until, number, listened, at = Calls.recorded(record)
  local t = listened + UNHEARD
  if listened == 0 or alive_until <= t then return false end
  Who.end_session(session, t)
  redis.call('HSET', HASH, 'r' .. session, Calls.record(t, number, listened, string.sub(record, at)))
  alive_seen = alive_seen or {}
  alive_seen[session] = t > gate.t and t
  shorten(session, box, max(0, t - gate.t))
  return true
end

-- To the other sessions: their mail, which is kept until their next call, and their notifications. Returns whether any is doubted now.
function Sessions.send_mail()
  seal()
  local doubted, own = false, boxes and boxes[SESSION]
  for session, box in pairs(boxes or {}) do
    if session ~= SESSION then
      local text, now = table.concat(box, ' '), State.int(gate.t)
      local words = table.concat({ HASH, session, now, box.head or '-1', text }, ' ') .. (box.paused and pause_left() or '')
      if notify(session, words) == 0 and doubt(session, box) then doubted, text = true, table.concat(box, ' ') end
      if #box > 0 then
        local field = 'm' .. session
        redis.call('HSET', HASH, field, (redis.call('HGET', HASH, field) or '') .. ' @' .. now .. ' ' .. text)
      end
    end
  end
  boxes = own and { [SESSION] = own }
  return doubted
end

function Sessions.own_mail()
  local own = boxes and boxes[SESSION]
  local letters = own and #own > 0 and ' @' .. State.int(gate.t) .. ' ' .. table.concat(own, ' ') or ''
  return (inbox or '') .. letters .. pause_left()
end

-- Holders ---------------------------------------------------------------------------------------------------------------------

-- Returns what leases ended with; `soonest` is a lower bound of the next end, since renewals only move it on.
function Sessions.expire_holders()
  if gate.soonest == 0 or gate.soonest > gate.t then return end
  for _, caller in ipairs(Who.ended(gate.t)) do
    Sessions.let_go({ caller })
    Gate.release(State.asked_of(caller), 1)
  end
  gate.soonest = Who.first_end()
end

-- When the next lease ends, if anybody holds: exactly if that is soon, otherwise not before.
function Sessions.next_end(soon)
  if gate.soonest < gate.t + soon then gate.soonest = Who.first_end() end
  return gate.soonest > 0 and gate.soonest
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
    for i, cost in ipairs(State.costs_of(State.asked_of(caller))) do
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
  if queued < gate.queued then -- in a moment of its own: a clock that has stepped back stands still, and who was seen may be heard again
    gate.t = gate.t + 1
    gate.born = gate.t
  end
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
    if not dead and not Gate.never(State.costs_of(State.asked_of(caller))) then return caller end
    Gate.leave({ caller }, State.asked_of(caller))
    if dead then Sessions.quit(State.session_of(caller)) else Sessions.deliver(caller, -1, 0, 0) end
  end
  return nil
end

-- The first waiter whose session is not about to die: one that waits calls so often that it has more than UNHEARD left. It looks at the
-- head in place of the head itself.
function Sessions.first_awake(head)
  local callers = { head }
  for i = 1, CLEANUP do
    local caller = callers[i]
    if not caller then return head end
    local t = Sessions.alive(State.session_of(caller))
    if t and t - gate.t >= UNHEARD then return caller end
    if i == 1 then callers = Who.ranked(0, min(CLEANUP, gate.queued) - 1) end
  end
  return head
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
      Gate.leave({ caller }, State.asked_of(caller))
      Sessions.quit(State.session_of(caller))
    end
  end
  if #callers < CLEANUP then gate.sweep, gate.cursor = gate.t + WAITER, 0 end
end
