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

-- False: it is of an older format, and worth nothing. One of a newer format is left alone.
function Rules.load(packed)
  gate = cmsgpack.unpack(packed)
  if gate.format ~= FORMAT then
    assert((gate.format or 0) < FORMAT, 'headgate: a newer version of headgate keeps the state of this name: update this one, too')
    return false
  end
  for _, rule in ipairs(gate.rules) do Rules.able(rule) end
  return true
end

function Rules.save()
  return cmsgpack.pack(gate)
end
