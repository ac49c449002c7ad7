-- Replies, and the record that is kept for each session: until when it is alive, the number of its last call, and the reply to that.

local RECORD = '<dd' -- and then the reply

function Calls.reply(verdict)
  return SESSION .. ' ' .. args[3] .. ' ' .. verdict
end

function Calls.record(alive_until, number, reply)
  return struct.pack(RECORD, alive_until, number) .. reply
end

function Calls.recorded(record)
  return struct.unpack(RECORD, record)
end

-- The reply to this call if it was made before or comes too late; until when the session is alive, and the number of its last call.
function Calls.recall(record)
  if not record then return nil, 0, 0 end
  local alive_until, last, at = Calls.recorded(record)
  if CALL > last then return nil, alive_until, last end
  return CALL == last and string.sub(record, at) or Calls.reply('late')
end
