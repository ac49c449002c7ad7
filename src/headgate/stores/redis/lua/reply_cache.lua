-- The record of a session, as MessagePack: the moment of its last call, that call's number, how
-- long the session is alive after it (0: it is over), the server's run (-1: the server does not
-- notify the session), and the last reply: its words after "ok now", or another verdict.
--
-- A repeated call gets the reply from the record. A call that comes after a later one changes
-- nothing (S3, T10).

ReplyCache = {}

-- Tells apart the servers that write records, and the starts of each: the moment of the library's
-- first record, in 32 bits. nil: it has written none yet. 0: this is a script, which keeps nothing
-- from call to call.
--
-- A session subscribes on one server. After a failover, a restart or a move of its slot, its record
-- has another number. So the present server does not notify it.
local RUN = 0

function ReplyCache.begin_run()
  RUN = nil
end

function ReplyCache.reply(verdict)
  return SESSION .. ' ' .. CALL_TEXT .. ' ' .. verdict
end

-- The reply of a call that was carried out at `now`.
function ReplyCache.done(now, words)
  return SESSION .. ' ' .. CALL_TEXT .. ' ok ' .. Numbers.text(now) .. ' ' .. words
end

function ReplyCache.pack(now, number, alive_until, is_notified, words)
  RUN = RUN or gate.t % 4294967296
  local life = alive_until > 0 and alive_until - now or 0
  return cmsgpack.pack(now, number, life, is_notified and RUN or -1, words)
end

-- Returns the moment of the last call, its number, until when the session is alive, whether this
-- server notifies it, and the words. A server that did not write the record does not notify it.
function ReplyCache.unpack(record)
  local now, number, life, run, words = cmsgpack.unpack(record)
  return now, number, life > 0 and now + life or 0, run == RUN, words
end

local LETTER = string.byte('a') -- a verdict begins with a letter, the words after "ok now" do not

-- Returns the reply to a repeated or late call. Otherwise returns nil, until when the session is
-- alive, and the number and moment of its last call. The number is false if that was refused.
function ReplyCache.recall(record)
  if not record then return nil, 0 end
  local now, last, alive_until, _, words = ReplyCache.unpack(record)
  local is_ok = string.byte(words) < LETTER
  if CALL > last then return nil, alive_until, is_ok and last, now end
  if CALL < last then return ReplyCache.reply('late') end
  return is_ok and ReplyCache.done(now, words) or ReplyCache.reply(words)
end

-- Whether the session received the last reply that is kept here. If not, the server has gone back
-- to an older state. Or it lost the name, and a late copy of an earlier call has created it again.
-- In both cases the session may have lost its places, and permits that it released may be held here
-- (L5).
function ReplyCache.was_received(last, now, beginning)
  return last and Numbers.text(last) .. ' ok ' .. Numbers.text(now) == beginning
end
