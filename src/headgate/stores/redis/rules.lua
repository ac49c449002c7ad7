-- From the text of a declaration to rules, and their state between two calls.

Rules = {}

local made = {}

function Rules.kind(name)
  made[name] = made[name] or Kinds[name]()
  return made[name]
end

function Rules.parsed_rules(program)
  local rules = {}
  for text in string.gmatch(program, '[^;]+') do
    local words, numbers = {}, {}
    for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
    for i = 3, #words do numbers[i - 2] = tonumber(words[i]) end
    rules[#rules + 1] = Rules.kind(words[1]).new(words[2], numbers)
  end
  return rules
end

-- Each window has one of the log keys for as long as it lives; a new one gets the first that is free.
function Rules.give_slots(rules)
  local used = {}
  for _, rule in ipairs(rules) do
    if rule.slot then used[rule.slot] = true end
  end
  for _, rule in ipairs(rules) do
    if rule.kind.logs and not rule.slot then
      local slot = 1
      while used[slot] do slot = slot + 1 end
      used[slot] = true
      rule.slot = slot
      redis.call('DEL', State.log_key(rule))
    end
  end
end

function Rules.load_state(program, packed)
  gate.rules = Rules.parsed_rules(program)
  local numbers, i = cmsgpack.unpack(packed), 8
  local function read()
    i = i + 1
    return numbers[i]
  end
  gate.t, gate.act, gate.fence, gate.order = numbers[1], numbers[2], numbers[3], numbers[4]
  gate.ttl, gate.soonest, gate.sweep, gate.cursor = numbers[5], numbers[6], numbers[7], numbers[8]
  for j = 1, #gate.rules do gate.waiting[j] = read() end
  for _, rule in ipairs(gate.rules) do rule.kind.load(rule, read) end
end

function Rules.new_state(program, now)
  gate.rules = Rules.parsed_rules(program)
  gate.t, gate.act, gate.fence, gate.order, gate.ttl, gate.soonest, gate.sweep, gate.cursor = now, 0, now, 0, 0, 0, now, 0
  for j, rule in ipairs(gate.rules) do
    gate.waiting[j] = 0
    rule.kind.open(rule, now)
  end
  Rules.give_slots(gate.rules)
  redis.call('DEL', QUEUE, HOLDERS, SESSIONS)
end

-- MessagePack keeps whole numbers whole, and is written and read in one step each.
function Rules.packed_state()
  local numbers = { gate.t, gate.act, gate.fence, gate.order, gate.ttl, gate.soonest, gate.sweep, gate.cursor }
  local function write(number) numbers[#numbers + 1] = number end
  for j = 1, #gate.rules do write(gate.waiting[j]) end
  for _, rule in ipairs(gate.rules) do rule.kind.save(rule, write) end
  return cmsgpack.pack(numbers)
end
