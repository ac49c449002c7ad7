-- The requests of a call, each with its answer: a verb and its words. The numbers among them are read before anything is written.

local out
local run, count_told, number_told, fence_told -- the run of equal answers that is being counted, by its kind (or the position)

function Requests.fresh()
  out, run = {}, nil
end

local function flush()
  if run then
    out[#out + 1] = run .. ' ' .. State.int(count_told) .. ' ' .. State.int(number_told) .. ' ' .. State.int(fence_told)
  end
  run = nil
end

-- Whether an answer is equal to those of the run: with fences one after another if they are grants, or positions if they wait.
local function follows(kind, number, fence)
  if run ~= kind or (kind ~= 'wait' and number_told ~= number) then return false end
  return not fence or fence_told + (kind == 'full' and 0 or count_told) == fence
end

-- Equal answers are told as one, those of acquires one request at a time; of waiters the first one's estimate is told.
local function answer(kind, count, number, fence)
  if follows(kind, number, fence) then
    count_told = count_told + count
  else
    flush()
    run, count_told, number_told, fence_told = kind, count, number, fence or 0
  end
end

local verbs = {}

-- "session:number:asked" of each, by the first one's number.
local function callers_of(session, first, count, asked)
  local callers, head, tail = {}, session .. ':', ':' .. asked
  for i = 1, count do callers[i] = head .. first + i - 1 .. tail end
  return callers
end

local function hold(first, count, asked, t)
  local lease = gate.rules.lease
  if lease then Promises.hold(callers_of(SESSION, first, count, asked), t, lease) end
end

-- How many of `left` acquires are told the same as the first: as many as would be if they came one by one. Whoever passes or waits makes
-- a difference to the next one; but to one that waits without end only if nobody else does.
local function decided_alike(kind, left, max_sleep, max_waiters)
  if kind == 'grant' or (kind == 'wait' and (max_sleep or gate.queued == 0)) then return 1 end
  return kind == 'wait' and max_waiters and min(left, max_waiters - gate.queued) or left
end

-- acquire first count max_sleep max_waiters asked
function verbs.acquire(first, left, max_sleep, max_waiters, asked)
  flush()
  local costs = State.costs_of(asked)
  if Gate.never(costs) then return answer('never', left, 0) end
  local passed, fence = Gate.pass(costs, left)
  if passed > 0 then
    hold(first, passed, asked, gate.t)
    answer('grant', passed, 0, fence - gate.t)
    first, left = first + passed, left - passed
  end
  while left > 0 do
    local kind, t, fence = Gate.acquire(costs, HORIZON, max_sleep, max_waiters) -- or a position in place of the fence
    local alike = decided_alike(kind, left, max_sleep, max_waiters)
    if kind == 'grant' then
      hold(first, alike, asked, t)
      fence = fence - gate.t
    elseif kind == 'wait' then
      State.queue_add(callers_of(SESSION, first, alike, asked), costs)
    end
    answer(kind, alike, t - gate.t, fence)
    first, left = first + alike, left - alike
  end
  State.write_queue(costs)
  Promises.write_holds()
end

-- Whether there was a grant to be undone; to whoever has left the queue just now nothing was granted.
local function undone(session, number, caller, t, asked)
  local mailed = session == SESSION and Sessions.recall(number) or 0
  if t == 0 then t = mailed end
  local done = Sessions.let_go({ caller }) == 1 or (t > 0 and not gate.rules.lease)
  if done then Gate.cancel(asked, t) else Sessions.forbid(session, State.int(number)) end
  return done
end

-- So many of them were held, or waited: which, is not told.
local function answer_many(done, count)
  if done > 0 then answer('done', done, 1) end
  if done < count then answer('done', count - done, 0) end
end

-- cancel session first count moment asked: waiters leave; grants that nobody acted on are undone (the moment is 0 when unknown, and for
-- more than one).
function verbs.cancel(session, first, count, t, asked)
  local callers = callers_of(session, first, count, asked)
  local done = Gate.leave(callers, asked)
  if done < count then
    for i = 1, count do
      if undone(session, first + i - 1, callers[i], t, asked) then done = done + 1 end
    end
  end
  answer_many(done, count)
end

-- quit session kept: all its places are given up at once, and all that it holds but the numbers in `kept`: "3,7", or "-" for none. With
-- "*" it keeps all.
function verbs.quit(session, kept)
  Sessions.quit(session)
  if kept ~= '*' then Sessions.keep_only(session, kept) end
  answer('done', 1, 1)
end

-- release session first count asked: of many it is told how many were still held, not which.
function verbs.release(session, first, count, asked)
  local held = Sessions.let_go(callers_of(session, first, count, asked))
  if held > 0 then Gate.release(asked, held) end
  answer_many(held, count)
end

-- renew caller lease: it was granted for that, which counts where no limit has a lease any more.
function verbs.renew(caller, lease)
  answer('done', 1, Sessions.renew(caller, lease) and 1 or 0)
end

-- settle moment extras
function verbs.settle(t, extras)
  Gate.settle(State.units_of(extras), t)
  answer('done', 1, 1)
end

-- drain unit limit left since: what the service has said (0: any limit of that unit; now).
function verbs.drain(unit, limit, left, since)
  Gate.drain(unit, limit, left, since)
  answer('done', 1, 1)
end

-- pause time: nobody passes for so long, and those who sleep are told.
function verbs.pause(time)
  Gate.pause(time)
  Promises.outlast(gate.act - gate.t)
  Sessions.announce_pause(gate.act - gate.t)
  answer('done', 1, 1)
end

-- resume: a pause ends, and all sessions are told so. At its end this call lets those pass who waited for that.
function verbs.resume()
  if Gate.pause_left() > 0 then Sessions.announce_pause(0) end
  Gate.resume()
  answer('done', 1, 1)
end

-- reset: what was counted is forgotten.
function verbs.reset()
  Gate.reset()
  answer('done', 1, 1)
end

-- rejoin session number moment fence asked: who was granted a moment that comes before the end of a pause waits again, before all who
-- were granted nothing. (Its session names it; one that is gone is found to be dead at the head of the queue.)
function verbs.rejoin(session, number, t, fence, asked)
  local caller = session .. ':' .. number .. ':' .. asked
  if session == SESSION then Sessions.recall(number) end -- mail that tells of that grant, too
  local done = Sessions.let_go({ caller }) == 1 or not gate.rules.lease
  if done then
    Gate.cancel(asked, t)
    State.queue_first(caller, fence, State.costs_of(asked))
  end
  answer('done', 1, done and 1 or 0)
end

-- declared: whether somebody has declared the limits.
function verbs.declared()
  answer('done', 1, gate.offered and 0 or 1)
end

-- update former: goes with an update, which overrules the `former` limits too (commas for spaces; "-": there are none); its sender hears that it came.
function verbs.update(former)
  if args[4] == UPDATED and former ~= '-' then Rules.replace((string.gsub(former, ',', ' '))) end
  answer('done', 1, 1)
end

-- status asked: how many wait, when one who comes now could pass, for how long all are paused, and what is left of each limit.
function verbs.status(asked)
  flush()
  local costs = State.costs_of(asked)
  local t = Sessions.head_of_queue() and max(Gate.estimate(costs), Gate.next_at()) or Gate.ready(costs)
  out[#out + 1] = 'status ' .. State.int(State.queue_length()) .. ' ' .. State.int(t - gate.t) .. ' ' .. State.int(Gate.pause_left())
  for _, rule in ipairs(gate.rules) do out[#out + 1] = State.int(rule:left(gate.t)) end
end

-- How many words a verb has; which of them are numbers, and which may be -1 for none.
local WORDS = { acquire = 5, cancel = 5, quit = 2, release = 4, renew = 2, settle = 2, status = 1, update = 1, drain = 4, pause = 1, rejoin = 5, resume = 0, reset = 0, declared = 0 }
local NUMBERS = { acquire = { 1, 2 }, cancel = { 2, 3, 4 }, release = { 2, 3 }, renew = { 2 }, settle = { 1 }, drain = { 2, 3, 4 }, pause = { 1 }, rejoin = { 3, 4 } }
local LIMITS = { acquire = { 3, 4 } }
local FIRST, NONE = 8, {}

function Requests.read()
  HORIZON = State.number(args[7])
  local at = FIRST
  while at <= #args do
    local verb = args[at]
    local words, numbers, limits = WORDS[verb], NUMBERS[verb] or NONE, LIMITS[verb] or NONE
    assert(words and at + words <= #args, 'headgate: unknown request')
    for i = 1, #numbers do args[at + numbers[i]] = State.number(args[at + numbers[i]]) end
    for i = 1, #limits do
      local number = State.number(args[at + limits[i]])
      args[at + limits[i]] = number >= 0 and number -- false: none
    end
    at = at + 1 + words
  end
end

function Requests.answers()
  local at = FIRST
  while at <= #args do
    local verb = args[at]
    verbs[verb](args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5])
    at = at + 1 + WORDS[verb]
  end
  flush()
  return table.concat(out, ' ')
end
