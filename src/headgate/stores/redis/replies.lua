-- Replies, and the record that is kept for each session: until when it is alive, the number of its last call, the moment of that if
-- this server notifies the session (or 0), and the reply to that call.

local RECORD = '<ddd' -- and then the reply
local REPLY = 25 -- where that begins: behind three numbers of 8 bytes

function Calls.reply(verdict)
  return SESSION .. ' ' .. args[3] .. ' ' .. verdict
end

function Calls.record(alive_until, number, listened, reply)
  return struct.pack(RECORD, alive_until, number, listened) .. reply
end

function Calls.recorded(record)
  return struct.unpack(RECORD, record)
end

-- The reply to this call if it was made before or comes too late, until when the session is alive, and the number of its last call.
function Calls.recall(record)
  if not record then return nil, 0 end
  local alive_until, last, _, at = Calls.recorded(record)
  if CALL > last then return nil, alive_until, last end
  return CALL == last and string.sub(record, at) or Calls.reply('late')
end

-- Whether the last reply to this session is the one that it says it heard. It is not if the state is an older one, or if the name was
-- lost, and then a copy of one of its calls was carried out there: so it has no place where it thinks, and may have given back what is
-- held here (L5).
function Calls.heard(record, beginning)
  local reply = SESSION .. ' ' .. beginning .. ' '
  return record and string.find(record, reply, REPLY, true) == REPLY
end

-- Whether this call is not the next one of its session: the state is an older one, or a call was turned away. The calls of a thread's
-- session go to many names.
function Calls.skips(last)
  return last and CALL > last + 1 and string.sub(SESSION, -2) ~= '.0'
end
