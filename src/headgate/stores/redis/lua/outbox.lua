-- The outbox: grants to waiters. Those of the session that calls go into the reply. Those of other
-- sessions are published, and kept for their next calls: a notification may be lost.
--
-- An item is "number count moment fence lease", for `count` requests in a row. Moment and fence are
-- relative to the `now` of the call that granted them. Moment -1: the request can never pass. A
-- kept text has several such calls, each as " @now" and its items. At the end of a reply or a
-- notification, "!" and a time say how long a pause lasts.

Outbox = {}

local NOTIFIED = 1000 -- the most sessions that a pause is published to (S9)
-- What to say of a pause or resume by this call. At its end, Gate.pause_left may not know it any
-- more: a grant for the end of a short pause has moved `not_before`.
local pause_text
local unread -- the items that were kept for the session that calls
local boxes -- the items of this call, by session
-- Neighbours with the same moment: a run, which becomes one item.
local run_session, run_number, run_count, run_t, run_fence, run_lease

function Outbox.reset(kept)
  unread, boxes, pause_text, run_session = kept, nil, nil, nil
end

local function box_of(session)
  boxes = boxes or {}
  boxes[session] = boxes[session] or {}
  return boxes[session]
end

local function item(number, count, t, fence, lease)
  return Numbers.text(number) .. ' ' .. Numbers.text(count) .. ' ' .. Numbers.text(t) .. ' '
    .. Numbers.text(fence) .. ' ' .. Numbers.text(lease)
end

local function end_run()
  if not run_session then return end
  local box = box_of(run_session)
  box[#box + 1] = item(run_number, run_count, run_t, run_fence, run_lease)
  run_session = nil
end

-- Adds an item, or one more request to the run. Neighbours that get the same moment have
-- consecutive fences, and the same lease.
function Outbox.add(id, t, fence, lease)
  local session, number = RequestId.session(id), tonumber(RequestId.number(id))
  local next_in_run = session == run_session and number == run_number + run_count
  if next_in_run and t == run_t and t >= 0 then
    run_count = run_count + 1
  else
    end_run()
    run_session, run_number, run_count = session, number, 1
    run_t, run_fence, run_lease = t, fence, lease
  end
end

local ITEM = ' (%d+) (%d+) (%-?%d+) (%d+) (%d+)'

-- What is left of an item without the numbers in `ended`: an item for each run between them. Notes
-- the moments of those numbers in `moments`.
local function rest_of(now, first, count, t, fence, lease, ended, moments)
  local text, from = '', 0
  local function keep_before(i)
    if from < i then
      text = text .. ' ' .. item(first + from, i - from, t, fence + from, lease)
    end
    from = i + 1
  end
  for i = 0, count - 1 do
    if ended[first + i] then
      keep_before(i)
      moments[first + i] = t < 0 and t or now + t
    end
  end
  keep_before(count)
  return text
end

-- Removes the unread grants of the numbers in `ended`. Returns their moments, by number. -1: the
-- request could never pass. There may be a thousand, so it walks once.
function Outbox.take_back(ended)
  local moments = {}
  if not unread then return moments end
  unread = string.gsub(unread, '@(%d+)([^@]*)', function(now, items)
    return '@' .. now .. string.gsub(items, ITEM, function(first, count, t, fence, lease)
      return rest_of(tonumber(now), tonumber(first), tonumber(count), tonumber(t),
        tonumber(fence), tonumber(lease), ended, moments)
    end)
  end)
  if not string.find(unread, '@%d+ %d') then unread = nil end -- no item is left
  return moments
end

function Outbox.add_head(session, delay)
  box_of(session).head = Numbers.text(delay)
end

-- Notifies the live sessions: they may sleep until a moment that was granted before. A session that
-- misses the notification learns of the pause from its next reply. 0: the pause has ended.
function Outbox.add_pause(left)
  pause_text = ' !' .. Numbers.text(left)
  Sessions.enlist()
  for _, session in ipairs(Membership.alive_after(gate.t, NOTIFIED)) do
    box_of(session).paused = true
  end
end

local function pause_left()
  local left = Gate.pause_left()
  return pause_text or (left > 0 and ' !' .. Numbers.text(left)) or ''
end

-- The last letter of the id of a session that subscribes to sharded channels. Each name has such a
-- channel, on the server of the name. Other sessions use the one channel of their client.
local SHARDED = string.byte('s')

-- Returns how many connections to this server received the text, or an error if the user may not
-- publish. Returns nil if other servers may have receivers: PUBLISH reaches the subscribers of all.
local function publish(session, text)
  local client = RequestId.client(session)
  if string.byte(session, -1) == SHARDED then
    local received = redis.pcall('SPUBLISH', HASH .. ':' .. client, text)
    local counts = type(received) == 'number' -- an old server returns an error
    -- A session that this server notifies subscribes here, so 0 receivers means that it is gone.
    -- Any other may still subscribe at the server that its slot comes from.
    if counts and (received > 0 or Sessions.is_notified(session)) then return received end
    redis.pcall('PUBLISH', 'headgate:' .. client, text)
    return nil
  end
  return redis.pcall('PUBLISH', 'headgate:' .. client, text)
end

-- The grants in the box get leases that end with their session: in the items, and as holders.
local function shorten(session, box, life)
  local ends = {}
  for i, text in ipairs(box) do
    local first, count, t, fence, lease = string.match(text, '^(%d+) (%d+) (%-?%d+) (%d+) (%d+)$')
    if tonumber(lease) > life then
      first, count, t = tonumber(first), tonumber(count), tonumber(t)
      for number = first, first + count - 1 do ends[Numbers.text(number)] = gate.t + t + life end
      box[i] = item(first, count, t, tonumber(fence), life)
    end
  end
  if next(ends) then Holders.shorten(session, ends, life) end
end

-- Publishes and keeps the items for other sessions. Returns whether one of these is suspect now.
function Outbox.send()
  end_run()
  local suspected, own = false, boxes and boxes[SESSION]
  for session, box in pairs(boxes or {}) do
    if session ~= SESSION then
      local items, now = table.concat(box, ' '), Numbers.text(gate.t)
      local text = table.concat({ HASH, session, now, box.head or '-1', items }, ' ')
      if box.paused then text = text .. pause_left() end
      local alive_until = publish(session, text) == 0 and Sessions.suspect(session)
      if alive_until then
        shorten(session, box, max(0, alive_until - gate.t))
        suspected, items = true, table.concat(box, ' ')
      end
      if #box > 0 then
        local field = 'm' .. session
        local kept = redis.call('HGET', HASH, field) or ''
        redis.call('HSET', HASH, field, kept .. ' @' .. now .. ' ' .. items)
      end
    end
  end
  boxes = own and { [SESSION] = own }
  return suspected
end

function Outbox.own()
  local own = boxes and boxes[SESSION]
  local items = own and #own > 0 and ' ' .. table.concat(own, ' ') or ''
  if unread and items ~= '' then items = ' @' .. Numbers.text(gate.t) .. items end
  return (unread or '') .. items .. pause_left()
end
