-- Makes rules from the text of a declaration. A rule has the values that change from call to call.
-- Its metatable has the declared values. The metatable of that has the functions of its kind.

Limits = {}

local kinds, declared, declarations = {}, {}, 0

local function kind_of(name)
  if not kinds[name] then kinds[name] = { __index = Kinds[name]() } end
  return kinds[name]
end

local function read(text)
  local kind, unit, words = string.match(text, '^(%l+) (%l[%l%d_]*)([%d ]*)$')
  local numbers = {}
  for word in string.gmatch(words or '', '%d+') do numbers[#numbers + 1] = tonumber(word) end
  return kind, unit, numbers, words
end

local function declare_rule(text)
  local name, unit, numbers = read(text)
  local kind = kind_of(name)
  local rule = setmetatable(kind.__index.new(unit, numbers), kind)
  rule.__index = rule
  return rule
end

local function declare_rules(program)
  if not declared[program] then
    if declarations == REMEMBERED then declared, declarations = {}, 0 end
    local rules = {}
    for text in string.gmatch(program, '[^;]+') do
      local rule = declare_rule(text)
      if rule.lease then rules.lease = min(rules.lease or rule.lease, rule.lease) end
      rules[#rules + 1] = rule
    end
    declared[program], declarations = rules, declarations + 1
  end
  return declared[program]
end

-- Whether the numbers of a rule are possible, by kind. A declaration writes no other text, so any
-- other one is damaged, such as one with `more` numbers. Twin: is_sound() of compile.py.
local sound = {}

-- Each tick adds `gain` to the bucket, and one token costs `price`.
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
  local kind, _, numbers, words = read(text)
  if not sound[kind] or string.find(words .. ' ', '  ', 1, true) then return false end
  if string.find(words, ' 0%d') or max(0, unpack(numbers)) >= NEVER then return false end
  return sound[kind](unpack(numbers))
end

function Limits.are_sound(program)
  if declared[program] then return true end
  for text in string.gmatch(program .. ';', '([^;]*);') do
    if not is_sound(text) then return false end
  end
  return true
end

-- Returns fresh rules: each state has its own.
function Limits.parse(program)
  local its = declare_rules(program)
  local rules = { declared = its, lease = its.lease }
  for i, rule in ipairs(its) do rules[i] = setmetatable({}, rule) end
  return rules
end
