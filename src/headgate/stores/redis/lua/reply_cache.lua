-- The record of a session, as MessagePack: until when it is alive, its last call's number, how long
-- before the end of its life that call was (0: the server does not notify the session), the run of
-- the server, and the last reply without session and number.
--
-- A repeated call gets the reply from the record. A call that comes after a later one changes
-- nothing (S3, T10).

ReplyCache = {}

-- One run of the library on one server, named by the millisecond of its first record, in 32 bits. A
-- session subscribes on one server. After a move of its slot, a failover or a restart, another run
-- has its record, and does not notify it. 0: a script does not know its run.
local RUN = 0

function ReplyCache.begin_run()
  RUN = nil
end

function ReplyCache.reply(verdict)
  return SESSION .. ' ' .. CALL_TEXT .. ' ' .. verdict
end

function ReplyCache.pack(alive_until, number, notified_at, verdict)
  RUN = RUN or floor(gate.t / 1000) % 4294967296
  local age = notified_at > 0 and alive_until - notified_at or 0
  return cmsgpack.pack(alive_until, number, age, RUN, verdict)
end

-- A server that did not write the record does not notify the session.
function ReplyCache.unpack(record)
  local alive_until, number, age, run, verdict = cmsgpack.unpack(record)
  return alive_until, number, age ~= 0 and run == RUN and alive_until - age or 0, verdict
end

-- Returns the reply to a repeated or late call. Otherwise returns nil, until when the session is
-- alive, and its last call's number and reply.
function ReplyCache.recall(record)
  if not record then return nil, 0 end
  local alive_until, last, _, verdict = ReplyCache.unpack(record)
  if CALL > last then return nil, alive_until, last, verdict end
  return ReplyCache.reply(CALL == last and verdict or 'late')
end

-- Whether the session received the last reply that is kept here. If not, the server has gone back
-- to an older state. Or it lost the name, and a late copy of an earlier call has created it again.
-- In both cases the session may have lost its places, and permits that it released may be held here
-- (L5).
function ReplyCache.was_received(last, verdict, beginning)
  local reply = last and Numbers.text(last) .. ' ' .. verdict
  return reply and string.sub(reply, 1, #beginning + 1) == beginning .. ' '
end
