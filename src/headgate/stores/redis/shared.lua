-- What all parts share: the names of the keys and arguments of a call, the constants, and the state of the one name it is about.
--
-- keys: 1 hash (limits, state, former limits; for each session its last reply "r" and its mail "m"), 2 waiters, holders and sessions
-- (who.lua), 3 the log, if a limit is a window (log.lua). Each is there as long as the name is, see docs/architecture.md.
-- args: 1 limits, 2 session, 3 number of its call, and then what call.lua or quick.lua says.
--
-- What is made anew for each call costs more than what is done with it, here: a small table as much as 20 additions, a number that
-- becomes text as 40 (python -m benchmarks.server_cost). So tables are made when they are needed, and what is asked for again is kept.
--
-- All of this is loaded once and called many times: what one call leaves behind is none of the next one's business, see begin().

local NEVER = 9007199254740992 -- 2^53: no moment
local MOST = 4503599627370496 -- 2^52: of anything that is counted
local FORMAT = 4 -- of the state: other numbers, another format
local WAITER, KEEP, CLEANUP = 10000000, 30000000, 100
local UNHEARD = 4000000 -- for which a session counts as alive after its last call when its notifications reach no connection
local HOLD, FORMER, DAY = 60000000, 8, 86400000000
local DECLARED, UPDATED = '1', '2' -- what a call says of its limits when they are to hold, and when they hold come what may
local ASKED, OFFERED = '3', '4' -- when it declares none: it makes no name; or one whose limits any declaration takes over
local REMEMBERED = 100 -- declarations, and states, between calls: more than take turns, mostly

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local keys, args
local HASH, WHO, LOG
local PROGRAM, SESSION, CALL
local gate -- the state: see gate.lua, and numbers.lua
local HORIZON
local touched, lasts -- keys that this call may have made; whether WHO is known to be there all the time
local Kinds = {} -- makers of the twins, by name: only what a limiter's limits need is made
local State, Who, Log, Numbers, Rules, Promises, Gate, Sessions, Requests, Calls = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}

local function begin(its_keys, its_args)
  keys, args, gate, touched, lasts = its_keys, its_args, nil, nil, false
  HASH, WHO, LOG = keys[1], keys[2], keys[3]
  PROGRAM, SESSION, CALL = args[1], args[2], tonumber(args[3])
end

local function touch(key)
  touched = touched or {}
  touched[key] = true
end
