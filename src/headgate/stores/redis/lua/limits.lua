-- From the text of a declaration to its rules. A rule is a table of the values that change from
-- call to call. Its metatable has the declared values, and the metatable of that has the functions
-- of its kind.

Limits = {}

local kinds, declared, declarations = {}, {}, 0

local function kind_of(name)
  if not kinds[name] then kinds[name] = { __index = Kinds[name]() } end
  return kinds[name]
end

local function declare_rule(text)
  local words, numbers = {}, {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  for i = 3, #words do numbers[i - 2] = tonumber(words[i]) end
  local kind = kind_of(words[1])
  local rule = setmetatable(kind.__index.new(words[2], numbers), kind)
  rule.__index = rule
  return rule
end

local function declare_rules(program)
  if not declared[program] then
    if declarations == REMEMBERED then declared, declarations = {}, 0 end
    local rules = {}
    for text in string.gmatch(program, '[^;]+') do
      local rule = declare_rule(text)
      -- The shortest lease holds for all.
      if rule.lease then rules.lease = min(rules.lease or rule.lease, rule.lease) end
      rules[#rules + 1] = rule
    end
    declared[program], declarations = rules, declarations + 1
  end
  return declared[program]
end

-- A text that no declaration writes was damaged. Twin: is_sound() of compile.py.
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
  if not sound[kind] or string.find(words .. ' ', '  ', 1, true) then return false end
  if string.find(words, ' 0%d') then return false end
  local numbers = {}
  for word in string.gmatch(words, '%d+') do
    local number = tonumber(word)
    if number >= NEVER then return false end
    numbers[#numbers + 1] = number
  end
  return sound[kind](unpack(numbers))
end

-- Whether rules can be made of `program`. A declaration that is remembered is sound.
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
