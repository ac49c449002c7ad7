-- Holders: which requests hold a permit, and until when their leases last.

Holders = {}

local granted -- holders that are not written yet

function Holders.reset()
  granted = nil
end

-- The requests hold from t on. Holders.write() writes them.
function Holders.add(ids, t, lease)
  granted = granted or {}
  Membership.append_holders(granted, ids, t + lease)
  if gate.next_expiry == 0 or t + lease < gate.next_expiry then gate.next_expiry = t + lease end
end

function Holders.write()
  if not granted then return end
  gate.held = gate.held + Membership.add_holders(granted)
  granted = nil
end

-- Returns how many of the requests held a permit.
function Holders.remove(ids)
  local held = Membership.remove_holders(ids)
  gate.held = gate.held - held
  return held
end

-- Releases the permits of expired leases. Renewals do not move `next_expiry`, so it may be too
-- early.
function Holders.expire()
  if gate.next_expiry == 0 or gate.next_expiry > gate.t then return end
  for _, id in ipairs(Membership.expired_holders(gate.t)) do
    Holders.remove({ id })
    Gate.release(RequestId.costs(id), 1)
  end
  gate.next_expiry = Membership.first_lease_end()
end

-- When the next lease ends, if there is one. The result is exact if the next lease ends within
-- `soon`; otherwise it may be too early.
function Holders.next_expiry(soon)
  if gate.next_expiry < gate.t + soon then gate.next_expiry = Membership.first_lease_end() end
  return gate.next_expiry > 0 and gate.next_expiry
end

-- Returns whether the request still holds. A permit of a limit that was removed stays held: the
-- limit counts it if it comes back (S1).
function Holders.renew(id, its_lease)
  local t, lease = Membership.lease_end(id), gate.rules.lease or its_lease
  if not t or t <= gate.t then return false end
  Membership.set_lease_end(id, max(t, gate.t + lease))
  Expiry.outlast(lease)
  return true
end

-- Releases the permits of a session, except for the numbers in `kept`. The session is over, and an
-- older state came back, so its releases were lost.
function Holders.keep_only(session, kept)
  local known, removed, beginning = {}, {}, session .. ':'
  for number in string.gmatch(kept, '%d+') do known[number] = true end
  Membership.each_holder(function(id)
    local its = string.sub(id, 1, #beginning) == beginning
    if its and not known[RequestId.number(id)] then removed[#removed + 1] = id end
  end)
  for _, id in ipairs(removed) do Gate.release(RequestId.costs(id), Holders.remove({ id })) end
end

-- Shortens leases: `ends` has the new end for the number of each request of the session.
function Holders.shorten(session, ends)
  local ids, beginning = {}, session .. ':'
  Membership.each_holder(function(id)
    local its = string.sub(id, 1, #beginning) == beginning
    if its and ends[RequestId.number(id)] then ids[#ids + 1] = id end
  end)
  for _, id in ipairs(ids) do
    local t = ends[RequestId.number(id)]
    Membership.set_lease_end(id, t)
    gate.next_expiry = min(gate.next_expiry, t)
  end
end
