-- The data model of one name, and the parts that all files share: keys, arguments, constants and
-- tables.
--
-- HASH, `headgate:{name}`
--   field       meaning                                                      written by
--   limits      the declaration: "slots permits 5 30000000;bucket ..."       main
--   offer       the same, in place of `limits`: no process has declared it   main
--   state       the numbers of `gate`, packed (state.lua)                    main, fast_acquire
--   former      limits that were replaced, and by which client               limits_history
--   told        "id moment": the head of the queue whose session was         main
--               notified last
--   r<session>  until when the session is alive, and its last reply          main, fast_acquire,
--               (reply_cache.lua)                                            sessions
--   m<session>  the outbox: grants that its next reply brings                outbox
--
-- MEMBERS, `headgate:{name}:who`: a sorted set of waiters, holders and sessions (membership.lua).
-- LOG, `headgate:{name}:log`: a sorted set with the entries that windows counted (window_log.lua).
--   It is there only if a limit is a window.
--
-- `gate` is the state during a call. All moments are microseconds of the server's clock.
--   program, rules              the declaration as text, and a rule for each limit
--   t                           the moment of this call; it never goes back
--   not_before, reserved        no grant before this moment; the latest moment that is granted
--   fence, last_place           of the last grant; of the last request that joined the queue
--   queued, held, sessions      how many members wait, hold or are sessions (nil: not counted)
--   waiting                     for each rule, the cost of all requests in the queue
--   next_expiry                 no lease ends before it; 0: there is no lease
--   next_sweep, sweep_cursor    when the queue is searched for expired sessions; from which rank
--   restarted_at                requests that joined the queue before this moment were lost
--   keys_end                    until when the keys live
--   offered                     no process has declared the limits
--
-- Each call tries fast_acquire.lua first, and then main.lua, which names KEYS and ARGV at its top.
--
-- Allocation dominates the cost of a call. A small table costs as much as 20 additions, and a
-- number that becomes text as much as 40 (python -m benchmarks.server_cost). So a table is made
-- when it is needed, and a value that is needed again is kept.
--
-- A server loads this text once and calls it many times. Each call resets the values of the call
-- before.

local NEVER = 9007199254740992 -- 2^53: no moment
local MOST = 4503599627370496 -- 2^52: the most of anything that is counted
local FORMAT = 4 -- of the state: other numbers need another format
-- WAITER: the longest life of a session after a call. KEEP: the time for which the record of an
-- expired session stays. CLEANUP: the most expired members that one step of a call removes.
local WAITER, KEEP, CLEANUP = 10000000, 30000000, 100
local UNHEARD = 4000000 -- a session that receives no notification lives so long after its last call
-- HOLD: the time before another client can declare replaced limits again. FORMER: the number of
-- declarations that are remembered.
local HOLD, FORMER, DAY = 60000000, 8, 86400000000
-- The limits of this call: the store knows them; they hold; they hold against any declaration.
local KNOWN, DECLARED, UPDATED = '0', '1', '2'
local ASKED, OFFERED = '3', '4' -- a look creates no name; any declaration replaces an offer
local REMEMBERED = 100 -- how many declarations and states are kept in memory between calls

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local keys, args -- KEYS and ARGV of this call
local HASH, MEMBERS, LOG
local PROGRAM, SESSION -- the limits as text, and the session that calls
local CALL, CALL_TEXT -- the number of its call
local DECLARES, RESERVE_AHEAD
local gate
local server_time -- of this call; gate.t is ahead of it after the clock has stepped back
local created -- keys that this call may have created, and that need a TTL
local members_stay -- whether MEMBERS exists throughout this call: a session is in it
local Kinds = {} -- makers of the rules of each kind; one is made when a limit needs it
-- One table for each part, made in its file.
local Numbers, Membership, WindowLog, Limits, State, Gate, RequestId, ReplyCache, Expiry
local Holders, Sessions, Outbox, Queue, Repair, LimitsHistory, Setup, Operations, Main, FastAcquire

local function begin(its_keys, its_args, program, session, call)
  keys, args, gate, created, members_stay = its_keys, its_args, nil, nil, false
  HASH, MEMBERS, LOG = keys[1], keys[2], keys[3]
  PROGRAM, SESSION, CALL, CALL_TEXT = program, session, tonumber(call), call
end

local function mark_created(key)
  created = created or {}
  created[key] = true
end
