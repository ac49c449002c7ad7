-- The TTL of the keys: they outlive every lease, waiter, reply and charge in them (S8, T12).

Expiry = {}

local SLACK = 60000000 -- the keys live longer than needed by this, so that few calls set a TTL

local function outlast(key, its_end, moment)
  if moment <= gate[its_end] then return end
  gate[its_end] = moment + SLACK
  mark_for_ttl(key)
end

-- MEMBERS has only waiters, holders and sessions. The charges in HASH may outlast them all, so
-- MEMBERS may expire before it. In a Cluster both live equally long: while a slot moves, a call for
-- a name with only one of its keys would have to wait.
function Expiry.extend()
  local last = gate.t + KEEP + SESSION_LIFE
  local lease = gate.held > 0 and gate.rules.lease
  if lease then last = max(last, max(gate.t, gate.not_before) + lease) end
  local members_last, rules = last, gate.rules
  for i = 1, #rules do
    local rule = rules[i]
    local idle = rule:idle_at()
    if idle > last and idle < NEVER then last = idle end
    -- A bucket that begins with less than its capacity begins again if the keys expire. So they
    -- stay for a day.
    if rule.size and rule.start < rule.size then last = max(last, gate.t + DAY) end
  end
  outlast(HASH, 'keys_end', last)
  if CLUSTERED then members_last = last end
  if gate.members_end > 0 then outlast(MEMBERS, 'members_end', members_last) end
end

-- The keys live for `time` from now, or longer.
function Expiry.outlast(time)
  outlast(HASH, 'keys_end', gate.t + time)
  if not CLUSTERED then return end
  Sessions.enlist()
  outlast(MEMBERS, 'members_end', gate.t + time)
end

-- A permit is held for `time` more.
function Expiry.outlast_lease(time)
  outlast(HASH, 'keys_end', gate.t + time)
  outlast(MEMBERS, 'members_end', gate.t + time)
end

-- The server expires keys by its own clock. If gate.t is ahead of it, the TTL is longer.
local function set_ttl(key, its_end)
  if not need_ttl[key] then return end
  redis.call('PEXPIRE', key, Numbers.text(ceil((gate[its_end] - server_time) / 1000)))
end

function Expiry.write()
  if not need_ttl then return end
  set_ttl(HASH, 'keys_end')
  set_ttl(MEMBERS, 'members_end')
end
