-- One call: what a session asks together, decided in order, and the reply.
--
-- ARGV: 1 limits, 2 whether they are declared or just known, 3 session, 4 number of the call, 5 whether the session has waiters,
-- 6 horizon, 7... one request each. The reply starts with session and number, so that a reply that went astray is noticed.
-- Everything is read and checked before the first write.

local function reply(...)
  return table.concat({ SESSION, int(CALL), ... }, ' ')
end

local function words_of(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  return words
end

local function number_or_nil(word)
  local number = tonumber(word)
  assert(number and number == math.floor(number) and number < NEVER, 'headgate: not a whole number: ' .. tostring(word))
  return number >= 0 and number or nil
end


local out = {}
local run -- the run of equal answers that is being counted: kind, count, number, fence

local function flush()
  if run then out[#out + 1] = run.kind .. ' ' .. run.count .. ' ' .. int(run.number) .. ' ' .. int(run.fence) end
  run = nil
end

-- Equal answers, with fences one after another if they are grants, are told as one; of waiters the first one's estimate is told.
local function answer(kind, number, fence)
  if run and run.kind == kind and (kind == 'wait' or run.number == number) and (not fence or run.fence + run.count == fence) then
    run.count = run.count + 1
  else
    flush()
    run = { kind = kind, count = 1, number = number, fence = fence or 0 }
  end
end

local function acquire_one(caller, units, max_sleep, max_waiters)
  for i, cost in ipairs(costs_of(units)) do
    if cost > gate.rules[i].capacity then return answer('never', 0) end
  end
  local kind, t, fence = Gate.acquire(caller, units, HORIZON, max_sleep, max_waiters)
  if kind == 'grant' then
    hold(caller, t)
    return answer(kind, t, fence)
  end
  answer(kind, t - gate.t)
end

local verbs = {}

-- acquire first count max_sleep max_waiters asked
function verbs.acquire(words)
  local first, count = number_or_nil(words[2]), number_or_nil(words[3])
  local max_sleep, max_waiters, units = number_or_nil(words[4]), number_or_nil(words[5]), parsed_units(words[6])
  for i = 0, count - 1 do
    acquire_one(SESSION .. ':' .. int(first + i) .. ':' .. words[6], units, max_sleep, max_waiters)
  end
end

-- cancel session number moment asked: a waiter leaves; a grant that nobody acted on is undone (its moment is 0 when unknown).
function verbs.cancel(words)
  local caller, t = words[2] .. ':' .. words[3] .. ':' .. words[5], number_or_nil(words[4])
  local mail = own_mail[words[3]]
  own_mail[words[3]] = nil
  local done = Gate.leave(caller)
  if not done then
    if t == 0 and mail then t = tonumber(mail[1]) end
    local held = redis.call('ZREM', HOLDERS, caller) == 1
    done = held or (t > 0 and not lease())
    if done then Gate.cancel(units_of(caller), t) end
  end
  answer('done', done and 1 or 0)
end

-- release caller
function verbs.release(words)
  local held = redis.call('ZREM', HOLDERS, words[2]) == 1
  if held then Gate.release(units_of(words[2])) end
  answer('done', held and 1 or 0)
end

-- renew caller
function verbs.renew(words)
  answer('done', renew(words[2]) and 1 or 0)
end

-- settle moment extras
function verbs.settle(words)
  Gate.settle(parsed_units(words[3]), number_or_nil(words[2]))
  answer('done', 1)
end

-- status asked
function verbs.status(words)
  flush()
  local costs = costs_of(parsed_units(words[2]))
  local t = queue_length() > 0 and math.max(Gate.estimate(costs), Gate.next_at()) or Gate.ready(costs)
  out[#out + 1] = 'status ' .. int(queue_length()) .. ' ' .. int(t - gate.t)
  for _, rule in ipairs(gate.rules) do out[#out + 1] = int(rule.kind.left(rule, gate.t)) end
end

-- When the head should be looked at again, and by whom; its session is told if it is another one that does not know yet.
local function look_at_head(known)
  local caller = head_of_queue()
  if not caller then return '-1 0' end
  local t = Gate.next_at()
  if t >= NEVER then t = gate.soonest > 0 and gate.soonest or gate.t + WAITER end
  local session = session_of(caller)
  if session == SESSION then return int(t) .. ' 1' end
  local told = caller .. ' ' .. int(t)
  if told ~= known then
    redis.call('HSET', HASH, 'told', told)
    others_mail[session] = others_mail[session] or {}
    others_mail[session].head = int(t)
  end
  return int(t) .. ' 0'
end

-- Grants for other sessions are kept for them until their next call, and announced: the announcement may be lost.
local function send_mail()
  for session, mail in pairs(others_mail) do
    local text = table.concat(mail, ' ')
    if #mail > 0 then
      local field = 'm' .. session
      redis.call('HSET', HASH, field, (redis.call('HGET', HASH, field) or '') .. text .. ' ')
    end
    local link = string.match(session, '^[^.]+')
    redis.call('PUBLISH', 'headgate:' .. link, table.concat({ HASH, session, int(gate.t), mail.head or '-1', text }, ' '))
  end
end

-- Every key outlives every promise made in it (S8, T12).
local function keep_alive()
  local last = gate.t + KEEP + WAITER
  for _, rule in ipairs(gate.rules) do
    local idle = rule.kind.idle_at(rule)
    last = math.max(last, idle < NEVER and idle or math.max(gate.t, gate.act) + rule.lease)
    if rule.start and rule.size and rule.start < rule.size then last = math.max(last, gate.t + 86400000000) end
  end
  local extend = last > gate.ttl
  if extend then gate.ttl = last + 60000000 end
  local left = int(math.ceil((gate.ttl - gate.t) / 1000))
  for _, key in ipairs(KEYS) do
    if extend or touched[key] then redis.call('PEXPIRE', key, left) end
  end
end

local requests = {}
for i = 7, #ARGV do
  local words = words_of(ARGV[i])
  assert(verbs[words[1]], 'headgate: unknown request')
  requests[#requests + 1] = words
end

local stored = redis.call('HMGET', HASH, 'limits', 'state', 'r' .. SESSION, 'm' .. SESSION, 'told')
local program, state, record = stored[1], stored[2], stored[3]
local alive_until = 0

if record then
  local last, until_moment, former = string.match(record, '^(%d+) (%d+) (.*)$')
  if CALL == tonumber(last) then return former end
  if CALL < tonumber(last) then return reply('late') end
  alive_until = tonumber(until_moment)
end

local now = clock()
if state then
  load_state(program, state)
  now = Gate.clamp(now)
  if WAITS and alive_until <= now then return reply('lapsed') end
  if program ~= PROGRAM and not DECLARES then return reply('stale', program) end
else
  if WAITS then return reply('lapsed') end
  new_state(PROGRAM, now)
end

read_mail(stored[4])
expire_holders()
if state and program ~= PROGRAM then Gate.follow(parsed_rules(PROGRAM)) end
if queue_length() > 0 then sweep_queue() end
for _, words in ipairs(requests) do verbs[words[1]](words) end
flush()
Gate.advance(HORIZON, function(caller, t, fence)
  hold(caller, t)
  deliver(caller, t, fence)
end)

local head = look_at_head(stored[5])
send_mail()
alive_until = attend(alive_until)
keep_alive()
out[#out + 1] = '|'
for number, grant in pairs(own_mail) do out[#out + 1] = number .. ' ' .. grant[1] .. ' ' .. grant[2] end
local answered = reply('ok', int(gate.t), head, table.concat(out, ' '))
redis.call('HSET', HASH, 'limits', PROGRAM, 'state', state_text(), 'r' .. SESSION,
  int(CALL) .. ' ' .. int(alive_until) .. ' ' .. answered)
if stored[4] then redis.call('HDEL', HASH, 'm' .. SESSION) end
return answered
