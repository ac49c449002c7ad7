-- Replies, and the record that is kept for each session: the number of its last call, until when it is alive, and the last reply.

function Calls.reply(...)
  return table.concat({ SESSION, args[4], ... }, ' ')
end

-- The reply to this call if it was made before or comes too late; and until when the session is alive (a text, as it is kept).
function Calls.recall(record)
  if not record then return nil, '0' end
  local last, alive_until, former = string.match(record, '^(%d+) (%d+) (.*)$')
  if CALL == tonumber(last) then return former end
  if CALL < tonumber(last) then return Calls.reply('late') end
  return nil, alive_until
end

function Calls.record(alive_until, answered)
  return args[4] .. ' ' .. alive_until .. ' ' .. answered
end
