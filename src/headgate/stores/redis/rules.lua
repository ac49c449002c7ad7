-- The state between two calls.
--
-- The whole state is one table of plain values in MessagePack, which keeps whole numbers whole and is read and written in one step
-- each; what a rule can do comes from its twin, as its metatable.

local made = {}

function Rules.able(rule)
  local name = rule.kind
  if not made[name] then
    local kind = Kinds[name]()
    made[name] = { new = kind.new, __index = kind }
  end
  return setmetatable(rule, made[name])
end

function Rules.load(packed)
  gate = cmsgpack.unpack(packed)
  for _, rule in ipairs(gate.rules) do Rules.able(rule) end
end

function Rules.save()
  return cmsgpack.pack(gate)
end
