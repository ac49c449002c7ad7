-- From the text of a declaration to rules, and their state between two calls.

local KINDS = { bucket = Bucket, window = Window, quota = Quota, slots = Slots }

local function parsed_rules(program)
  local rules = {}
  for text in string.gmatch(program, '[^;]+') do
    local words, numbers = {}, {}
    for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
    for i = 3, #words do numbers[i - 2] = tonumber(words[i]) end
    rules[#rules + 1] = KINDS[words[1]].new(words[2], numbers)
  end
  return rules
end

-- Each window has one of the log keys for as long as it lives; a new one gets the first that is free.
local function give_slots(rules)
  local used = {}
  for _, rule in ipairs(rules) do
    if rule.slot then used[rule.slot] = true end
  end
  for _, rule in ipairs(rules) do
    if rule.kind == Window and not rule.slot then
      local slot = 1
      while used[slot] do slot = slot + 1 end
      used[slot] = true
      rule.slot = slot
      redis.call('DEL', log_key(rule))
    end
  end
end

local function load_state(program, text)
  gate.rules = parsed_rules(program)
  local numbers, i = {}, 0
  for number in string.gmatch(text, '%S+') do numbers[#numbers + 1] = tonumber(number) end
  local function read()
    i = i + 1
    return numbers[i]
  end
  gate.t, gate.act, gate.fence, gate.order, gate.ttl, gate.soonest, gate.sweep, gate.cursor =
    read(), read(), read(), read(), read(), read(), read(), read()
  for j = 1, #gate.rules do gate.waiting[j] = read() end
  for _, rule in ipairs(gate.rules) do rule.kind.load(rule, read) end
end

local function new_state(program, now)
  gate.rules = parsed_rules(program)
  gate.t, gate.act, gate.fence, gate.order, gate.ttl, gate.soonest, gate.sweep, gate.cursor = now, 0, now, 0, 0, 0, now, 0
  for j, rule in ipairs(gate.rules) do
    gate.waiting[j] = 0
    rule.kind.open(rule, now)
  end
  give_slots(gate.rules)
  redis.call('DEL', QUEUE, HOLDERS, SESSIONS)
end

local function state_text()
  local numbers = {}
  local function write(number) numbers[#numbers + 1] = int(number) end
  write(gate.t) write(gate.act) write(gate.fence) write(gate.order)
  write(gate.ttl) write(gate.soonest) write(gate.sweep) write(gate.cursor)
  for j = 1, #gate.rules do write(gate.waiting[j]) end
  for _, rule in ipairs(gate.rules) do rule.kind.save(rule, write) end
  return table.concat(numbers, ' ')
end
