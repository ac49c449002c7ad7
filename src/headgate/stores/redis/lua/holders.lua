-- The requests that hold a permit, and the ends of their leases.

Holders = {}

local granted

function Holders.reset()
  granted = nil
end

-- Notes permits that are granted for the moment `t`. Holders.write() writes them. `shortened`:
-- `lease` is shorter than that of the limits.
function Holders.add(ids, t, lease, shortened)
  granted = granted or {}
  Membership.append_holders(granted, ids, t + lease, shortened and t)
  if gate.next_expiry == 0 or t + lease < gate.next_expiry then gate.next_expiry = t + lease end
end

function Holders.write()
  if not granted then return end
  Sessions.enlist()
  gate.held = gate.held + Membership.add_holders(granted)
  granted = nil
end

-- Returns how many held.
function Holders.remove(ids)
  local held = Membership.remove_holders(ids)
  gate.held = gate.held - held
  return held
end

-- Releases expired leases. Renewals do not move `next_expiry`, so it may be too early.
function Holders.expire()
  if gate.next_expiry == 0 or gate.next_expiry > gate.t then return end
  for _, id in ipairs(Membership.expired_holders(gate.t)) do
    Holders.remove({ id })
    Gate.release(RequestId.costs(id), 1)
  end
  gate.next_expiry = Membership.first_lease_end()
end

-- Returns when the next lease ends, or false. A moment within `soon` from now is exact. One that
-- comes later may be too early.
function Holders.next_expiry(soon)
  if gate.next_expiry < gate.t + soon then gate.next_expiry = Membership.first_lease_end() end
  return gate.next_expiry > 0 and gate.next_expiry
end

-- Returns whether the request still holds. `since` is the moment of its grant. If no limit has a
-- lease any more, the permit stays held with `its_lease`: it counts if the limit comes back (S1).
function Holders.renew(id, its_lease, since)
  local t, lease = Membership.lease_end(id), gate.rules.lease or its_lease
  if not t or t <= gate.t then return false end
  Membership.set_lease_end(id, max(t, gate.t + lease), since)
  Expiry.outlast_lease(lease)
  return true
end

local function ids_of(session, is_wanted)
  local ids, beginning = {}, session .. ':'
  Membership.each_holder(function(id)
    local its = string.sub(id, 1, #beginning) == beginning
    if its and is_wanted(RequestId.number(id)) then ids[#ids + 1] = id end
  end)
  return ids
end

-- Releases the permits of a session except `kept`: an older state came back, so its releases were
-- lost.
function Holders.keep_only(session, kept)
  local known = {}
  for number in string.gmatch(kept, '%d+') do known[number] = true end
  local lost = ids_of(session, function(number) return not known[number] end)
  for _, id in ipairs(lost) do Gate.release(RequestId.costs(id), Holders.remove({ id })) end
end

-- `ends` has the new end of each lease, by the number of its request. Each lease begins `life`
-- before its end.
function Holders.shorten(session, ends, life)
  for _, id in ipairs(ids_of(session, function(number) return ends[number] end)) do
    local t = ends[RequestId.number(id)]
    -- A score that says `since` makes a lease a little longer (membership.lua). One of 0 must end
    -- exactly now.
    Membership.set_lease_end(id, t, life > 0 and t - life)
    gate.next_expiry = min(gate.next_expiry, t)
  end
end
