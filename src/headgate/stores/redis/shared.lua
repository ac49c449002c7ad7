-- What all parts share: the names of the keys and arguments of a call, the constants, and the state of the one name it is about.
--
-- keys: 1 hash (limits, state, and for each session its last reply "r" and its mail "m"), 2 queue, 3 holders by lease end,
-- 4 sessions by the moment until which they are alive, 5-8 logs of windows.
-- args: 1 limits, 2 whether they are declared or just known, 3 session, 4 number of its call, 5 whether it has waiters,
-- 6 horizon, 7... one request each.
--
-- All of this is loaded once and called many times: what one call leaves behind is none of the next one's business, see begin().

local LOGS = 4
local NEVER = 9007199254740992 -- 2^53: no moment
local MOST = 4503599627370496 -- 2^52: of anything that is counted
local FORMAT = 1 -- of the state: other fields, another number
local WAITER, KEEP, CLEANUP = 10000000, 30000000, 100

local keys, args
local HASH, QUEUE, HOLDERS, SESSIONS
local PROGRAM, SESSION, CALL, HORIZON
local gate -- the state: see rules.lua
local touched -- keys that this call has added to
local Kinds = {} -- makers of the twins, by name: only what a limiter's limits need is made
local State, Rules, Promises, Gate, Sessions, Requests, Calls = {}, {}, {}, {}, {}, {}, {}

local function begin(its_keys, its_args)
  keys, args, gate, touched = its_keys, its_args, nil, {}
  HASH, QUEUE, HOLDERS, SESSIONS = keys[1], keys[2], keys[3], keys[4]
  PROGRAM, SESSION, CALL, HORIZON = args[1], args[3], tonumber(args[4]), tonumber(args[6])
end
