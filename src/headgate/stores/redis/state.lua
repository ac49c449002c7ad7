-- Numbers and keys. All numbers are integers and become text by int(), never by tostring (which loses the microseconds of a moment).

function State.int(number)
  return string.format('%.0f', number)
end

function State.add(key, score, member)
  touched[key] = true
  redis.call('ZADD', key, score, member)
end

function State.log_key(rule)
  return keys[LOGS + rule.slot]
end
