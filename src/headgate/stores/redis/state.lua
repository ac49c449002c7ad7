-- Numbers and keys. All numbers are integers and become text by int(), never by tostring (which loses the microseconds of a moment).

local format = string.format
local INTEGER = format('%d', MOST) == '4503599627370496' and '%d' or '%.0f' -- the second is slow, and right where a long is short
local number_seen, text_seen -- most numbers are asked for again at once

function State.int(number)
  if number ~= number_seen then number_seen, text_seen = number, format(number < NEVER and INTEGER or '%.0f', number) end
  return text_seen
end

function State.add(key, score, member)
  touched[key] = true
  redis.call('ZADD', key, score, member)
end
