-- The least a token bucket on Redis can be: the cost of one EVALSHA of such a script is the floor
-- of the table. It refuses and cannot wait, cancel, queue, or replay a lost reply safely.
-- KEYS[1] the bucket, "tokens since" in one string
-- ARGV[1] capacity, ARGV[2] microseconds for one token
-- Returns 1 when a token was taken, 0 when there was none.

local capacity, per_token = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tokens, since = capacity, now

local state = redis.call('GET', KEYS[1])
if state then
    local kept, at = string.match(state, '(%d+) (%d+)')
    local gained = math.max(0, math.floor((now - at) / per_token))
    tokens = math.min(capacity, kept + gained)
    since = at + gained * per_token
end
if tokens < 1 then
    return 0
end
redis.call('SET', KEYS[1], string.format('%.0f %.0f', tokens - 1, since), 'PX', math.ceil(capacity * per_token / 1000))
return 1
