-- As a library: what a server that has functions (Redis 7, Valkey) loads once. NAME is the library's, with the digest of its text.
--
-- All of it is made by the first call: while a library is loaded, Lua's own functions are not there.

local calls

local function call(name)
  return function(its_keys, its_args)
    calls = calls or made()
    return calls[name](its_keys, its_args)
  end
end

redis.register_function(NAME, call('whole'))
redis.register_function({ function_name = NAME .. '_back', callback = call('whole'), flags = { 'allow-oom' } })
redis.register_function(NAME .. '_quick', call('quick'))
