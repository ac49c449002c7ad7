-- What all parts of the script share: the names of its keys and arguments, its constants, and the state of the one name it is about.
--
-- KEYS: 1 hash (limits, state, and for each session its last reply "r" and its mail "m"), 2 queue, 3 holders by lease end,
-- 4 sessions by the moment until which they are alive, 5-8 logs of windows.
-- ARGV: 1 limits, 2 whether they are declared or just known, 3 session, 4 number of its call, 5 whether it has waiters,
-- 6 horizon, 7... one request each.

local HASH, QUEUE, HOLDERS, SESSIONS, LOGS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], 4
local PROGRAM, DECLARES, SESSION, CALL = ARGV[1], ARGV[2] == '1', ARGV[3], tonumber(ARGV[4])
local WAITS, HORIZON = ARGV[5] == '1', tonumber(ARGV[6])
local NEVER = 9007199254740992 -- 2^53: no moment
local MOST = 4503599627370496 -- 2^52: of anything that is counted
local WAITER, KEEP, CLEANUP = 10000000, 30000000, 100

local gate -- the state: see rules.lua
local touched = {} -- keys that this call has added to
local Kinds = {} -- makers of the twins, by name: only what a limiter's limits need is made
local State, Rules, Promises, Gate, Sessions, Requests
