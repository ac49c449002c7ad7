-- The sliding window. Twin: sliding_window.py; the reasons stand there.
--
-- An entry is 16 bytes: moment and cost. The log is in three parts. `log` has the oldest entries: a
-- text that is written only when it has `changed`. Its first `skipped` bytes have expired. `tail`
-- has the few entries after those: a text that every call writes. `last` and `pending` are the
-- latest entry. `first` is the oldest moment in `log` and `tail`; 0: there is none.

local SlidingWindowRule = { kind = 'window', holds = false }
local CELLS = 124
local ENTRY, SIZE = '<dd', 16
local FULL, LONG_TAIL = 127 * SIZE, 8 * SIZE

function SlidingWindowRule.new(unit, numbers)
  return {
    unit = unit, capacity = numbers[1], per = numbers[2], cell = ceil(numbers[2] / CELLS),
  }
end

local function entries(rule)
  return string.sub(rule.log, rule.skipped + 1) .. rule.tail
end

local function set_log(rule, log)
  rule.log, rule.tail, rule.skipped, rule.changed = log, '', 0, true
end

function SlidingWindowRule.open(rule, t)
  set_log(rule, '')
  rule.first, rule.used, rule.last, rule.pending = 0, 0, 0, 0
  rule.freed_at, rule.opened, rule.merges_until = 0, t, 0
  rule.wanted, rule.found = 0, 0 -- a cache: see `ready`
end

local function forget_first(rule)
  if rule.skipped == #rule.log then set_log(rule, rule.tail) end -- all of `log` has expired
  local moment, cost, after = struct.unpack(ENTRY, rule.log, rule.skipped + 1)
  rule.freed_at = max(rule.freed_at, moment + rule.per)
  rule.used, rule.skipped = rule.used - cost, after - 1
  local log, at = rule.log, after
  if at > #log then log, at = rule.tail, 1 end
  rule.first = at <= #log and struct.unpack('<d', log, at) or 0
end

function SlidingWindowRule.refresh(rule, t)
  local past = t - rule.per
  if rule.last <= past then
    if rule.last > 0 then
      rule.freed_at = max(rule.freed_at, rule.last + rule.per)
      set_log(rule, '')
      rule.first, rule.used, rule.last, rule.pending = 0, 0, 0, 0
    end
  else
    while rule.first > 0 and rule.first <= past do forget_first(rule) end
  end
end

function SlidingWindowRule.freed(rule, need)
  local log, at = entries(rule), 1
  while at < #log do
    local moment, cost, after = struct.unpack(ENTRY, log, at)
    need, at = need - cost, after
    if need <= 0 then return moment + rule.per end
  end
  return rule.last + rule.per
end

-- A cache: `freed` returned the moment `found` for the cost `wanted`. A new entry clears it (0); an
-- entry that expires does not change the moment. Without it, each call would read the log again for
-- a large cost at the head of the queue.
function SlidingWindowRule.ready(rule, cost, t)
  local need = rule.used + cost - rule.capacity
  if need <= 0 then return t end
  if rule.wanted ~= cost then rule.wanted, rule.found = cost, rule:freed(need) end
  return max(t, rule.found)
end

function SlidingWindowRule.take(rule, cost, t)
  rule:refresh(t)
  local last = rule.last
  if last > 0 and t ~= last then
    if #rule.log - rule.skipped + #rule.tail == FULL then rule:merge(t) end
    if t >= rule.merges_until or floor(t / rule.cell) ~= floor(last / rule.cell) then
      rule.tail, rule.pending = rule.tail .. struct.pack(ENTRY, last, rule.pending), 0
      if rule.first == 0 then rule.first = last end
      if #rule.tail > LONG_TAIL then set_log(rule, entries(rule)) end
    end
  end
  rule.last, rule.pending, rule.used = t, rule.pending + cost, rule.used + cost
  rule.wanted = 0
end

function SlidingWindowRule.merge(rule, t)
  local merged, log, at = {}, entries(rule), 1
  local last, pending = 0, 0 -- the entry that is merged now
  while at < #log do
    local moment, cost, after = struct.unpack(ENTRY, log, at)
    if last > 0 and floor(moment / rule.cell) ~= floor(last / rule.cell) then
      merged[#merged + 1], pending = struct.pack(ENTRY, last, pending), 0
    end
    last, pending, at = moment, pending + cost, after
  end
  merged[#merged + 1] = struct.pack(ENTRY, last, pending)
  set_log(rule, table.concat(merged))
  rule.first = struct.unpack('<d', rule.log)
  rule.merges_until = t + rule.per
end

function SlidingWindowRule.give(rule, cost, t)
  if t < rule.opened or t + rule.per <= rule.freed_at then return end
  local log, at, moment, there = entries(rule), 1, 0, 0
  while at < #log do
    local after
    moment, there, after = struct.unpack(ENTRY, log, at)
    if moment >= t then break end
    at = after
  end
  local in_log = at < #log
  if not in_log then moment, there = rule.last, rule.pending end
  if not rule:entry_has(moment, t) then return end
  local back = min(cost, there)
  if in_log then
    local entry = struct.pack(ENTRY, moment, there - back)
    set_log(rule, string.sub(log, 1, at - 1) .. entry .. string.sub(log, at + SIZE))
  else
    rule.pending = there - back
  end
  rule.used, rule.wanted = rule.used - back, 0
end

function SlidingWindowRule.entry_has(rule, moment, t)
  local same_cell = floor(moment / rule.cell) == floor(t / rule.cell)
  return moment == t or (moment > t and same_cell and t < rule.merges_until)
end

function SlidingWindowRule.settle(rule, extra, t, now)
  if extra < 0 then
    rule:give(-extra, t)
  elseif extra > 0 then
    rule:take(min(extra, MOST - rule.used), max(now, rule.last))
  end
end

function SlidingWindowRule.drain(rule, left, since, now)
  rule:refresh(now)
  if rule.freed_at <= since then rule:settle(max(0, rule.capacity - rule.used - left), now, now) end
end

function SlidingWindowRule.ahead(rule, total, t, now)
  rule:refresh(now)
  local periods = floor((total - 1) / rule.capacity)
  local rest = total - 1 - periods * rule.capacity
  -- As `ready`, but without its cache: that one is for the head of the queue.
  local need = rule.used + rest + 1 - rule.capacity
  return (need > 0 and max(t, rule:freed(need)) or t) + periods * rule.per
end

function SlidingWindowRule.idle_at(rule)
  return rule.last > 0 and rule.last + rule.per or 0
end

function SlidingWindowRule.left(rule, t)
  rule:refresh(t)
  return rule.capacity - rule.used
end

function SlidingWindowRule.adopt(rule, old, t)
  set_log(rule, entries(old))
  rule.first, rule.used, rule.last, rule.pending = old.first, old.used, old.last, old.pending
  rule.freed_at, rule.opened = t, old.opened
  rule.merges_until = rule.per == old.per and old.merges_until or 0
  rule.wanted, rule.found = 0, 0
end

-- The tail is a text, and stands last. The log has a field of its own: see state.lua.
function SlidingWindowRule.numbers(rule, t)
  return rule.first, rule.used, rule.last - t, rule.pending, rule.freed_at, rule.opened - t,
    rule.merges_until, rule.skipped, rule.tail
end

function SlidingWindowRule.restore(rule, t, first, used, last, pending, freed_at, opened,
    merges_until, skipped, tail)
  rule.first, rule.used, rule.last, rule.pending = first, used, t + last, pending
  rule.freed_at, rule.opened, rule.merges_until = freed_at, t + opened, merges_until
  rule.wanted, rule.found, rule.skipped, rule.tail = 0, 0, skipped, tail
end

return SlidingWindowRule
