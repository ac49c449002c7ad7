-- The operations of a call, each a verb and its words (the arguments), and their answers.

Operations = {}

local out
local run_kind, run_count, run_number, run_place -- a run of equal answers

local function end_run()
  if run_kind then
    out[#out + 1] = run_kind .. ' ' .. Numbers.text(run_count) .. ' ' .. Numbers.text(run_number)
      .. ' ' .. Numbers.text(run_place)
  end
  run_kind = nil
end

-- Whether an answer belongs to the present run. In a run, grants have consecutive fences, waiters
-- consecutive positions, and refusals the same position. `place` is that fence or position. A run
-- of waiters keeps the first estimate.
local function follows(kind, number, place)
  if run_kind ~= kind or (kind ~= 'wait' and run_number ~= number) then return false end
  return not place or run_place + (kind == 'full' and 0 or run_count) == place
end

-- Equal answers are merged; for acquires, only within one operation.
local function answer(kind, count, number, place)
  if follows(kind, number, place) then
    run_count = run_count + count
  else
    end_run()
    run_kind, run_count, run_number, run_place = kind, count, number, place or 0
  end
end

local function done()
  answer('done', 1, 1)
end

local verbs = {}

local function ids_of(session, first, count, asked)
  local ids, head, tail = {}, session .. ':', ':' .. asked
  for i = 1, count do ids[i] = head .. first + i - 1 .. tail end
  return ids
end

local function hold(first, count, asked, t)
  local lease = gate.rules.lease
  if lease then Holders.add(ids_of(SESSION, first, count, asked), t, lease) end
end

-- The first of `left` equal acquires got the decision `kind`. Returns how many of them get the same
-- one. A grant is for one acquire, since it changes the next decision. A wait is for one acquire if
-- the queue is empty, or if there is a `max_sleep`. Otherwise all wait, up to `max_waiters`. All
-- refusals are alike.
local function decided_alike(kind, left, max_sleep, max_waiters)
  if kind == 'grant' or (kind == 'wait' and (max_sleep or gate.queued == 0)) then return 1 end
  return kind == 'wait' and max_waiters and min(left, max_waiters - gate.queued) or left
end

function verbs.acquire(first, count, max_sleep, max_waiters, asked)
  end_run()
  local costs, left = RequestId.costs_of(asked), count
  if Gate.never(costs) then return answer('never', left, 0) end
  local passed, fence = Gate.pass(costs, left)
  if passed > 0 then
    hold(first, passed, asked, gate.t)
    answer('grant', passed, 0, fence - gate.t)
    first, left = first + passed, left - passed
  end
  while left > 0 do
    local kind, t, place = Gate.acquire(costs, RESERVE_AHEAD, max_sleep, max_waiters)
    local alike = decided_alike(kind, left, max_sleep, max_waiters)
    if kind == 'grant' then
      hold(first, alike, asked, t)
      place = place - gate.t
    elseif kind == 'wait' then
      Queue.add(ids_of(SESSION, first, alike, asked), costs)
    end
    answer(kind, alike, t - gate.t, place)
    first, left = first + alike, left - alike
  end
  Queue.write_joined(costs)
  Holders.write()
end

-- Removes unread grants. Returns their moments, by number. This call has read only the outbox of
-- its own session.
local function take_back(session, first, count)
  local numbers = {}
  if session ~= SESSION then return numbers end
  for number = first, first + count - 1 do numbers[number] = true end
  return Outbox.take_back(numbers)
end

-- Undoes a grant, and returns whether there was one. Without leases, only its moment `t` shows that
-- there was. A thread that has lost the reply does not know it, but its record does.
local function undo(session, number, id, t, asked)
  if t == 0 then t = Sessions.granted_at(session, number) end
  local granted = Holders.remove({ id }) == 1 or (t > 0 and not gate.rules.lease)
  if granted then Gate.cancel(RequestId.costs_of(asked), t) end
  Sessions.reject_call(session, number)
  return granted
end

-- `ended` of the requests were held or waited. The answer does not say which.
local function answer_many(ended, count)
  if ended > 0 then answer('done', ended, 1) end
  if ended < count then answer('done', count - ended, 0) end
end

-- Waiters leave, and unused grants are undone. t is 0 if it is unknown, or for several requests:
-- the outbox may have the moments.
function verbs.cancel(session, first, count, t, asked)
  local ids = ids_of(session, first, count, asked)
  local ended = Queue.remove(ids, RequestId.costs_of(asked))
  if ended < count then
    local kept = take_back(session, first, count)
    for i, id in ipairs(ids) do -- every id: `Queue.remove` says only how many waited
      local number = first + i - 1
      local moment = t == 0 and kept[number] or t
      if undo(session, number, id, moment, asked) then ended = ended + 1 end
    end
  end
  answer_many(ended, count)
end

-- A waiter asks for another cost, and keeps its place. If it was granted already, nothing changes.
function verbs.amend(number, asked, wanted)
  local head, costs = SESSION .. ':' .. number .. ':', RequestId.costs_of(wanted)
  local amended = not Gate.never(costs)
    and Queue.amend(head .. asked, RequestId.costs_of(asked), head .. wanted, costs)
  answer('done', 1, amended and 1 or 0)
end

-- A session is over, and holds only the numbers in `kept`: "3,7"; "-" for none; "*" for all.
function verbs.quit(session, kept)
  Sessions.quit(session)
  if kept ~= '*' then Holders.keep_only(session, kept) end
  done()
end

function verbs.release(session, first, count, asked)
  local held = Holders.remove(ids_of(session, first, count, asked))
  if held > 0 then Gate.release(RequestId.costs_of(asked), held) end
  answer_many(held, count)
end

-- The granted lease counts only if no limit has one now. `since`: the moment of the grant.
function verbs.renew(id, lease, since)
  answer('done', 1, Holders.renew(id, lease, since) and 1 or 0)
end

function verbs.settle(t, extras)
  Gate.settle(RequestId.units_of(extras), t)
  done()
end

-- Limit 0: any limit of that unit. Since 0: now.
function verbs.drain(unit, limit, left, since)
  Gate.drain(unit, limit, left, since)
  done()
end

function verbs.pause(time)
  Gate.pause(time)
  Expiry.outlast(gate.own_pause - gate.t)
  Outbox.add_pause(gate.own_pause - gate.t)
  done()
end

-- For a key: the whole limiter is paused for `time` more. The state of the whole may be on another
-- server. So each call of a session names the pause while it lasts, and it holds for that call.
function verbs.whole(time)
  Gate.pause_whole(time)
  done()
end

function verbs.resume()
  if Gate.pause_left() > 0 then Outbox.add_pause(0) end
  Gate.resume()
  done()
end

function verbs.reset()
  Gate.reset()
  done()
end

-- A request waits again, because its reserved moment `t` is before the end of a pause. It stands
-- ahead of all that were never granted.
function verbs.rejoin(session, number, t, fence, asked)
  local ids = ids_of(session, number, 1, asked)
  take_back(session, number, 1)
  local granted = Holders.remove(ids) == 1 or not gate.rules.lease
  if granted then
    local costs = RequestId.costs_of(asked)
    Gate.cancel(costs, t)
    Queue.add_first(ids[1], fence, costs)
  end
  answer('done', 1, granted and 1 or 0)
end

function verbs.declared()
  answer('done', 1, gate.offered and 0 or 1)
end

-- Notes that an update also replaces the limits `former`, which its process has declared before
-- (commas for spaces; "-": none).
function verbs.update(former)
  if DECLARES == UPDATED and former ~= '-' then
    LimitsHistory.replace((string.gsub(former, ',', ' ')))
  end
  done()
end

-- The answer: waiters, delay until a new request could pass, remaining pause, what each limit has
-- left.
function verbs.status(asked)
  end_run()
  local costs = RequestId.costs_of(asked)
  local head, costs_of_head = Queue.head()
  local estimate = Gate.estimate(costs)
  local t = head and max(estimate, Gate.ready(costs_of_head)) or Gate.ready(costs)
  -- A new request passes behind the head, and not before its own estimate. If only a release lets
  -- it pass, the estimate replaces NEVER. Twin: entry_at() of gate.py.
  if t >= NEVER and estimate > gate.t then t = estimate end
  out[#out + 1] = 'status ' .. Numbers.text(gate.queued) .. ' ' .. Numbers.text(t - gate.t) .. ' '
    .. Numbers.text(Gate.pause_left())
  for _, rule in ipairs(gate.rules) do out[#out + 1] = Numbers.text(rule:left(gate.t)) end
end

-- Words: n is a number, o a number or -1 for none, w any other word.
local WORDS = {
  acquire = 'nnoow', amend = 'www', cancel = 'wnnnw', quit = 'ww', release = 'wnnw',
  renew = 'wnn', settle = 'nw', status = 'w', update = 'w', drain = 'wnnn', pause = 'n',
  whole = 'n', rejoin = 'wnnnw', resume = '', reset = '', declared = '',
}
local NUMBER, OPTIONAL = string.byte('no', 1, 2)
local FIRST = 8 -- of ARGV

-- Turns words into numbers, in place, before anything is written. -1 becomes false.
function Operations.read()
  local at = FIRST
  while at <= #args do
    local words = WORDS[args[at]]
    assert(words and at + #words <= #args, 'headgate: unknown request')
    for i = 1, #words do
      local kind = string.byte(words, i)
      if kind == NUMBER then
        args[at + i] = Numbers.parse(args[at + i])
      elseif kind == OPTIONAL then
        local number = Numbers.parse(args[at + i])
        args[at + i] = number >= 0 and number
      end
    end
    at = at + 1 + #words
  end
end

-- Removes the unread grants of permits that this call releases: the session knows them. So the
-- record of the call is short.
function Operations.forget_released()
  local released, at = {}, FIRST
  while at <= #args do
    if args[at] == 'release' and args[at + 1] == SESSION then
      local first, count = args[at + 2], args[at + 3]
      for number = first, first + count - 1 do released[number] = true end
    end
    at = at + 1 + #WORDS[args[at]]
  end
  Outbox.take_back(released)
end

function Operations.run()
  out, run_kind = {}, nil
  local at = FIRST
  while at <= #args do
    local verb = args[at]
    verbs[verb](args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5])
    at = at + 1 + #WORDS[verb]
  end
  end_run()
  return table.concat(out, ' ')
end
