-- Way (a): every caller has a reservation on arrival, and a cancel records a shift: "each number
-- higher than n moves forward by one step".
--
-- For one bucket and one token each. `zero` is the moment at which the bucket is empty.
-- Reservations that lie ahead stand one step apart and the last of them at `zero`. So a caller with
-- k callers behind it goes at zero - k * STEP. Taking one out moves all behind it by one step.
--
-- KEYS: 1 hash ("state" and each session's last reply), 2 reservations ahead by number, 3 shifts by
--   index.
-- ARGV: 1 microseconds for a token, 2 capacity, 3 session, 4 number of its call, 5 shifts it has
--   received, 6 how many to reserve, 7... numbers to cancel.
-- Reply: session call shifts now first from shift..., the i-th reservation is at from + i * STEP,
--   or now.

local HASH, AHEAD, SHIFTS = KEYS[1], KEYS[2], KEYS[3]
local STEP, SIZE, SESSION, CALL = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local HEARD, COUNT = tonumber(ARGV[5]), tonumber(ARGV[6])
-- shifts that are remembered; milliseconds that the keys outlive the last reservation
local KEPT, KEEP = 1000, 60000

local stored = redis.call('HMGET', HASH, 'state', 'r' .. SESSION)
if stored[2] then
  local last, former = string.match(stored[2], '^(%d+) (.*)$')
  if CALL <= tonumber(last) then return former end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local zero, last_number, index = now, 0, 0 -- a new bucket is empty
if stored[1] then
  local words = {}
  for word in string.gmatch(stored[1], '%d+') do words[#words + 1] = tonumber(word) end
  zero, last_number, index, now = words[1], words[2], words[3], math.max(now, words[4])
end

local function int(number)
  return string.format('%.0f', number)
end

-- Forgets the reservations whose moment has come: nothing moves them any more.
local function pass()
  local ahead = math.max(0, math.ceil((zero - now) / STEP))
  redis.call('ZREMRANGEBYRANK', AHEAD, 0, -ahead - 1)
end

local function cancel(numbers)
  local shifts, told = {}, {}
  for _, number in ipairs(numbers) do
    if redis.call('ZREM', AHEAD, number) == 1 then
      zero, index = zero - STEP, index + 1
      told[#told + 1] = number
      shifts[#shifts + 1] = index
      shifts[#shifts + 1] = int(index) .. ':' .. number
    end
  end
  if #told == 0 then return end
  redis.call('ZADD', SHIFTS, unpack(shifts))
  redis.call('ZREMRANGEBYRANK', SHIFTS, 0, -KEPT - 1)
  redis.call('PUBLISH', HASH, int(index) .. ' ' .. table.concat(told, ' '))
end

local function book(count)
  zero = math.max(zero, now - SIZE * STEP)
  local from, bookings = zero, {}
  for number = last_number + 1, last_number + count do
    bookings[#bookings + 1] = number
    bookings[#bookings + 1] = int(number)
  end
  if count > 0 then redis.call('ZADD', AHEAD, unpack(bookings)) end
  last_number, zero = last_number + count, zero + count * STEP
  return last_number - count + 1, from
end

local function heard()
  assert(HEARD >= index - KEPT, 'a shift is forgotten that was not heard')
  local words = {}
  if HEARD < index then
    for _, shift in ipairs(redis.call('ZRANGEBYSCORE', SHIFTS, '(' .. int(HEARD), '+inf')) do
      words[#words + 1] = string.match(shift, '%d+$')
    end
  end
  return table.concat(words, ' ')
end

pass()
cancel({ unpack(ARGV, 7) })
local first, from = book(COUNT)
local reply = table.concat({ SESSION, ARGV[4], int(index), int(now), int(first), int(from), heard() }, ' ')
redis.call('HSET', HASH, 'state', table.concat({ int(zero), int(last_number), int(index), int(now) }, ' '), 'r' .. SESSION, ARGV[4] .. ' ' .. reply)
local left = int(KEEP + math.max(0, math.ceil((zero - now) / 1000)))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, left) end
return reply
