-- Makes a name small again when it is idle: one HASH, which is a list.
--
-- The commands for this take as long as a call. A name that is held again and again would pay them
-- for each permit. So a name is tidied once in SESSION_LIFE at most.

Tidy = {}

-- Notes that a value is long, before a call replaces or removes it. `told` counts as one, so that
-- Tidy.run removes it.
function Tidy.note(record, kept, told)
  if told or is_long(record) or is_long(kept) then gate.large = true end
end

-- Removes what only a name with waiters or holders needs. Returns whether HASH may be large.
function Tidy.run()
  if gate.queued > 0 or gate.held > 0 or gate.members_end == 0 then return false end
  if gate.tidied_at + SESSION_LIFE > gate.t then return false end
  local was_large = gate.large
  gate.tidied_at, gate.large = gate.t, false
  if was_large then redis.call('HDEL', HASH, 'told') end
  Operations.forget_released()
  Sessions.leave_alone()
  return was_large
end

-- Makes HASH anew without the fields that the call is about to write, unless a value is long.
function Tidy.rewrite(state, reply_field, record)
  local fields, rest = redis.call('HKEYS', HASH), {}
  if #fields > FEW or is_long(state) or is_long(record) then return end
  local values = redis.call('HMGET', HASH, unpack(fields))
  for i, field in ipairs(fields) do
    if field ~= 'state' and field ~= reply_field then
      if is_long(values[i]) then return end
      rest[#rest + 1], rest[#rest + 2] = field, values[i]
    end
  end
  redis.call('DEL', HASH)
  mark_for_ttl(HASH)
  redis.call('HSET', HASH, unpack(rest)) -- the limits at least
end
