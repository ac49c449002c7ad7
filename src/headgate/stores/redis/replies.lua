-- Replies, and the record that is kept for each session: until when it is alive, the number of its last call, the moment of that if
-- the server notifies the session (or 0), the run of that server, and the reply to that call.

local RECORD = '<dddd' -- and then the reply
local REPLY = 33 -- where that begins: behind four numbers of 8 bytes

-- Which server this is, since when: the moment of the first record that it wrote by the library. A session subscribes on one server,
-- and its record may come to another: with its slot, by a failover, or when the server starts again. 0: a script does not know.
local RUN = 0

function Calls.begin_run()
  RUN = nil
end

function Calls.reply(verdict)
  return SESSION .. ' ' .. args[3] .. ' ' .. verdict
end

function Calls.record(alive_until, number, listened, reply)
  RUN = RUN or gate.t
  return struct.pack(RECORD, alive_until, number, listened, RUN) .. reply
end

-- That another server notifies the session is no news of this one.
function Calls.recorded(record)
  local alive_until, number, listened, run, at = struct.unpack(RECORD, record)
  return alive_until, number, run == RUN and listened or 0, at
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
