-- From the text of a declaration to its rules. A rule holds what changes from call to call; its metatable holds what it was declared
-- with, and that one's metatable what its kind can do.

local kinds, declared, declarations = {}, {}, 0

local function kind_of(name)
  if not kinds[name] then kinds[name] = { __index = Kinds[name]() } end
  return kinds[name]
end

local function rule_declared(text)
  local words, numbers = {}, {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  for i = 3, #words do numbers[i - 2] = tonumber(words[i]) end
  local kind = kind_of(words[1])
  local rule = setmetatable(kind.__index.new(words[2], numbers), kind)
  rule.__index = rule
  return rule
end

local function rules_declared(program)
  if not declared[program] then
    if declarations == REMEMBERED then declared, declarations = {}, 0 end
    local rules = {}
    for text in string.gmatch(program, '[^;]+') do
      local rule = rule_declared(text)
      if rule.lease then rules.lease = min(rules.lease or rule.lease, rule.lease) end -- the shortest
      rules[#rules + 1] = rule
    end
    declared[program], declarations = rules, declarations + 1
  end
  return declared[program]
end

-- What no declaration writes was damaged on the way, or here. Twin: is_sound() of rules.py.
local sound = {}

function sound.bucket(capacity, price, gain, tick, start, more)
  if not start or more or min(capacity, price, gain, tick) == 0 then return false end
  return start <= capacity and capacity * price < NEVER
end

function sound.window(capacity, time, more)
  return time and not more and min(capacity, time) > 0
end

sound.slots = sound.window

function sound.quota(capacity, per, anchor, slack, more)
  return slack and not more and min(capacity, per) > 0 and max(anchor, slack) < per
end

local function is_sound(text)
  local kind, _, words = string.match(text, '^(%l+) (%l[%l%d_]*)([%d ]*)$')
  if not sound[kind] or string.find(words .. ' ', '  ', 1, true) or string.find(words, ' 0%d') then return false end
  local numbers = {}
  for word in string.gmatch(words, '%d+') do
    local number = tonumber(word)
    if number >= NEVER then return false end
    numbers[#numbers + 1] = number
  end
  return sound[kind](unpack(numbers))
end

-- Whether rules can be made of `program`. One that is known is sound.
function Rules.sound(program)
  if declared[program] then return true end
  for text in string.gmatch(program .. ';', '([^;]*);') do
    if not is_sound(text) then return false end
  end
  return true
end

-- Fresh rules: each state has its own.
function Rules.parsed(program)
  local its = rules_declared(program)
  local rules = { declared = its, lease = its.lease }
  for i, rule in ipairs(its) do rules[i] = setmetatable({}, rule) end
  return rules
end
