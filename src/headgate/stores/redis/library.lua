-- As a library: what a server that has functions (Redis 7, Valkey) loads once. NAME is the library's, with the digest of its text.

redis.register_function(NAME, Calls.whole)
redis.register_function({ function_name = NAME .. '_back', callback = Calls.whole, flags = { 'allow-oom' } })
redis.register_function(NAME .. '_quick', Calls.quick)
