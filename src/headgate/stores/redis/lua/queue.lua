-- The queue. Requests that join it are written together, and so are those that leave its head.

Queue = {}

local EMPTY = {}
local stretch -- how many requests are read next
local front, at -- requests read from the beginning of the queue, and the index of the head in them
local joining, passed -- requests that joined, and those that left the head: not written yet

function Queue.reset()
  stretch, front, at, joining, passed = 3, EMPTY, 1, nil, nil
end

local function first()
  if not front[at] and gate.queued > 0 then
    Queue.write_passed()
    front, at = Membership.by_rank(0, min(stretch, gate.queued) - 1), 1
    stretch = min(64, 4 * stretch) -- a call that needs more than the first few needs many
  end
  return front[at]
end

-- A place is the moment of joining in units of PLACE microseconds, or the place behind the last one
-- if that is later. So it says since when the request waits.
function Queue.add(ids, costs)
  joining = joining or {}
  local place = max(gate.last_place + 1, floor(gate.t / PLACE))
  Membership.append_waiters(joining, ids, place)
  gate.last_place = place + #ids - 1
  Gate.join(#ids, costs)
end

-- Writes the requests that joined, which all cost the same. `Queue.add` counted them all, so those
-- that were in the queue already are subtracted again.
function Queue.write_joined(costs)
  if not joining then return end
  Sessions.enlist()
  local known = #joining / 2 - Membership.add_waiters(joining)
  if known > 0 then Gate.leave(known, costs) end
  joining = nil
end

-- Adds a request that was granted before, ahead of those that were not, by its fence.
function Queue.add_first(id, fence, costs)
  local list = {}
  Membership.append_waiters(list, { id }, fence - MOST)
  Sessions.enlist()
  Gate.join(Membership.add_waiters(list), costs)
  front, at = EMPTY, 1
end

function Queue.pass()
  passed = passed or {}
  passed[#passed + 1] = front[at]
  at = at + 1
end

function Queue.write_passed()
  if passed then Membership.remove_waiters(passed) end
  passed = nil
end

-- Removes requests with the same costs. Returns how many of them waited.
function Queue.remove(ids, costs)
  local left = Membership.remove_waiters(ids)
  if left == 0 then return 0 end
  if left == 1 and front[at] == ids[1] then at = at + 1 else front, at = EMPTY, 1 end
  Gate.leave(left, costs)
  return left
end

-- Returns whether the request waited. Its costs change, and so does its id.
function Queue.amend(id, costs, new, new_costs)
  if not Membership.rename_waiter(id, new) then return false end
  Gate.amend(costs, new_costs)
  front, at = EMPTY, 1
  return true
end

function Queue.each(see)
  Membership.each(0, gate.queued, function(id) see(RequestId.costs(id)) end)
end

-- The head and its costs. Removes requests of expired sessions before it, and those that can never
-- pass any more: their sessions receive the moment -1.
function Queue.head()
  for _ = 1, CLEANUP do
    local id = first()
    if not id then return nil end
    local session, costs = RequestId.session(id), RequestId.costs(id)
    local expired = not Sessions.alive_until(session)
    if not expired and not Gate.never(costs) then return id, costs end
    Queue.remove({ id }, costs)
    if expired then Sessions.leave(session) else Outbox.add(id, -1, 0, 0) end
  end
  return nil
end

-- Whether the session of a request is not about to expire. A living session that waits has more
-- than UNHEARD left: a call leaves it 7.5 s or more, and the next one follows within 3 s.
local function is_awake(id)
  local t = Sessions.alive_until(RequestId.session(id))
  return t and t - gate.t >= UNHEARD
end

-- The first request whose session is not about to expire. That session calls at the head's moment.
function Queue.first_awake(head)
  if is_awake(head) then return head end
  local ids = Membership.by_rank(0, min(CLEANUP, gate.queued) - 1)
  for i = 2, #ids do
    if is_awake(ids[i]) then return ids[i] end
  end
  return head
end

-- Removes requests of expired sessions, so that only living ones are counted. A search starts at
-- most every SESSION_LIFE, and only if a session has expired. An expired session is known for KEEP,
-- which is longer, so no search misses it. Each call walks a part of the queue.
function Queue.sweep()
  if gate.next_sweep > gate.t then return end
  if gate.sweep_cursor == 0 and not Membership.silent_since(gate.t, 1)[1] then
    gate.next_sweep = gate.t + SESSION_LIFE
    return
  end
  local last = min(gate.sweep_cursor + CLEANUP, gate.queued) - 1
  local ids = Membership.by_rank(gate.sweep_cursor, last)
  for _, id in ipairs(ids) do
    local session = RequestId.session(id)
    if Sessions.alive_until(session) then
      gate.sweep_cursor = gate.sweep_cursor + 1
    else
      Queue.remove({ id }, RequestId.costs(id))
      Sessions.leave(session)
    end
  end
  if #ids < CLEANUP then gate.next_sweep, gate.sweep_cursor = gate.t + SESSION_LIFE, 0 end
end
