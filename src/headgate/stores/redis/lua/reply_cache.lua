-- The record of a session: until when it is alive, its last call's number and moment, the server's
-- run, and the last reply. The moment is 0 if the server does not notify the session.
--
-- A repeated call gets the reply from the record. A call that comes after a later one changes
-- nothing (S3, T10).

ReplyCache = {}

local RECORD, REPLY = '<dddd', 33 -- the numbers, and where the reply begins behind them

-- One run of the library on one server, named by the moment of its first record. A session
-- subscribes on one server. After a move of its slot, a failover or a restart, another run has its
-- record, and does not notify it. 0: a script does not know its run.
local RUN = 0

function ReplyCache.begin_run()
  RUN = nil
end

function ReplyCache.reply(verdict)
  return SESSION .. ' ' .. CALL_TEXT .. ' ' .. verdict
end

function ReplyCache.pack(alive_until, number, notified_at, reply)
  RUN = RUN or gate.t
  return struct.pack(RECORD, alive_until, number, notified_at, RUN) .. reply
end

-- Returns the numbers, and where the reply begins. A server that did not write the record does not
-- notify the session.
function ReplyCache.unpack(record)
  local alive_until, number, notified_at, run, at = struct.unpack(RECORD, record)
  return alive_until, number, run == RUN and notified_at or 0, at
end

-- Returns the reply to a repeated or late call; otherwise nil, and until when the session is alive.
function ReplyCache.recall(record)
  if not record then return nil, 0 end
  local alive_until, last, _, at = ReplyCache.unpack(record)
  if CALL > last then return nil, alive_until end
  return CALL == last and string.sub(record, at) or ReplyCache.reply('late')
end

-- Whether the session received the last reply that is kept here. Otherwise the state is an older
-- one. Or the name was lost, and a late copy of an earlier call made it again. The session may have
-- lost its place, and may have released permits that are held here (L5).
function ReplyCache.was_received(record, beginning)
  local reply = SESSION .. ' ' .. beginning .. ' '
  return record and string.find(record, reply, REPLY, true) == REPLY
end
