-- The requests of a call, each with its answer. The numbers in them are read before anything is written.

local out
local run -- the run of equal answers that is being counted: kind, count, number, fence (of who waits or may not: the position)

function Requests.fresh()
  out, run = {}, nil
end

local function flush()
  if run then
    out[#out + 1] = run.kind .. ' ' .. run.count .. ' ' .. State.int(run.number) .. ' ' .. State.int(run.fence)
  end
  run = nil
end

-- Whether an answer is equal to those of the run: with fences one after another if they are grants, or positions if they wait.
local function follows(kind, number, fence)
  if not run or run.kind ~= kind or (kind ~= 'wait' and run.number ~= number) then return false end
  return run.fence + (kind == 'full' and 0 or run.count) == fence or not fence
end

-- Equal answers are told as one, those of acquires one request at a time; of waiters the first one's estimate is told.
local function answer(kind, count, number, fence)
  if follows(kind, number, fence) then
    run.count = run.count + count
  else
    flush()
    run = { kind = kind, count = count, number = number, fence = fence or 0 }
  end
end

local function number_of(word)
  local number = tonumber(word)
  assert(number and number == floor(number) and number < NEVER, 'headgate: not a whole number: ' .. tostring(word))
  return number
end

local function limit_of(word)
  local number = number_of(word)
  return number >= 0 and number or nil
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

-- How many of `left` acquires are decided by what was said to the first: as long as each is told the same as if it had come alone. Who
-- has to wait makes a difference to the next one.
local function decided_alike(kind, left, max_sleep, max_waiters)
  if kind == 'grant' or (kind == 'wait' and max_sleep) then return 1 end
  if kind ~= 'wait' or not max_waiters then return left end
  return min(left, max_waiters - gate.queued)
end

-- acquire first count max_sleep max_waiters asked
function verbs.acquire(words)
  flush()
  local first, left, max_sleep, max_waiters, asked = unpack(words, 2, 6)
  local costs = State.costs_of(State.parsed_units(asked))
  if Gate.never(costs) then return answer('never', left, 0) end
  local passed, fence = Gate.pass(costs, left)
  if passed > 0 then
    hold(first, passed, asked, gate.t)
    answer('grant', passed, gate.t, fence)
    first, left = first + passed, left - passed
  end
  while left > 0 do
    local kind, t, fence = Gate.acquire(costs, tonumber(args[6]), max_sleep, max_waiters) -- or a position in place of the fence
    local alike = decided_alike(kind, left, max_sleep, max_waiters)
    if kind == 'grant' then
      hold(first, alike, asked, t)
    elseif kind == 'wait' then
      State.queue_add(callers_of(SESSION, first, alike, asked), costs)
    end
    answer(kind, alike, kind == 'grant' and t or t - gate.t, fence)
    first, left = first + alike, left - alike
  end
  State.write_queue(costs)
  Promises.write_holds()
end

-- cancel session number moment asked: a waiter leaves; a grant that nobody acted on is undone (its moment is 0 when unknown).
function verbs.cancel(words)
  local caller, t = words[2] .. ':' .. words[3] .. ':' .. words[5], words[4]
  local done = Gate.leave(caller)
  if not done then
    local mailed = words[2] == SESSION and Sessions.recall(words[3]) or 0
    if t == 0 then t = mailed end
    done = Sessions.let_go({ caller }) == 1 or (t > 0 and not gate.rules.lease)
    if done then Gate.cancel(State.units_of(caller), t) else Sessions.forbid(words[2], words[3]) end
  end
  answer('done', 1, done and 1 or 0)
end

-- quit session: all its places are given up at once.
function verbs.quit(words)
  Sessions.quit(words[2])
  answer('done', 1, 1)
end

-- release session first count asked: of many it is told how many were still held, not which.
function verbs.release(words)
  local session, first, count, asked = unpack(words, 2)
  local held = Sessions.let_go(callers_of(session, first, count, asked))
  if held > 0 then
    Gate.release(State.parsed_units(asked), held)
    answer('done', held, 1)
  end
  if held < count then answer('done', count - held, 0) end
end

-- renew caller lease: it was granted for that, which counts where no limit has a lease any more.
function verbs.renew(words)
  answer('done', 1, Sessions.renew(words[2], words[3]) and 1 or 0)
end

-- settle moment extras
function verbs.settle(words)
  Gate.settle(State.parsed_units(words[3]), words[2])
  answer('done', 1, 1)
end

-- update former: goes with an update, which overrules the `former` limits too (commas for spaces); its sender hears that it came.
function verbs.update(words)
  if args[4] == UPDATED then Rules.replace((string.gsub(words[2], ',', ' '))) end
  answer('done', 1, 1)
end

-- status asked
function verbs.status(words)
  flush()
  local costs = State.costs_of(State.parsed_units(words[2]))
  local t = Sessions.head_of_queue() and max(Gate.estimate(costs), Gate.next_at()) or Gate.ready(costs)
  out[#out + 1] = 'status ' .. State.int(State.queue_length()) .. ' ' .. State.int(t - gate.t)
  for _, rule in ipairs(gate.rules) do out[#out + 1] = State.int(rule:left(gate.t)) end
end

-- Which words of a request are numbers, and which may be -1 for none.
local NUMBERS = { acquire = { 2, 3 }, cancel = { 4 }, quit = {}, release = { 3, 4 }, renew = { 3 }, settle = { 2 }, status = {}, update = {} }
local LIMITS = { acquire = { 4, 5 } }

function Requests.read()
  local requests = {}
  for i = 7, #args do
    local words, count = {}, 0
    for word in string.gmatch(args[i], '%S+') do
      count = count + 1
      words[count] = word
    end
    assert(verbs[words[1]], 'headgate: unknown request')
    for _, at in ipairs(NUMBERS[words[1]]) do words[at] = number_of(words[at]) end
    for _, at in ipairs(LIMITS[words[1]] or {}) do words[at] = limit_of(words[at]) end
    requests[#requests + 1] = words
  end
  return requests
end

function Requests.answers(requests)
  for _, words in ipairs(requests) do verbs[words[1]](words) end
  flush()
  return table.concat(out, ' ')
end
