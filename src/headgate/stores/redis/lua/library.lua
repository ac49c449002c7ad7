-- The library of a server that has functions (Redis 7, Valkey). NAME has the digest of its text.
-- Lua's own functions are not there while a library is loaded, so the first call makes `programs`.

local programs

local function call(name)
  return function(its_keys, its_args)
    programs = programs or make_programs() -- from script.py
    return programs[name](its_keys, its_args)
  end
end

redis.register_function(NAME, call('whole'))
-- For calls that only give back: they run although memory is full.
redis.register_function({
  function_name = NAME .. '_back', callback = call('whole'), flags = { 'allow-oom' },
})
redis.register_function(NAME .. '_fast', call('fast'))
redis.register_function(NAME .. '_index', call('index'))
redis.register_function(NAME .. '_forget', call('forget'))
