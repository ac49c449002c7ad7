-- The data model of one name, and the keys, arguments, constants and tables that all files share.
--
-- HASH, `headgate:{name}`
--   field       meaning                                                      written by
--   limits      the declaration: "slots permits 5 30000000;bucket ..."       main
--   offer       the same, in place of `limits`: no process has declared it   main
--   state       the numbers of `gate`, packed (state.lua)                    main, fast_acquire
--   log1, ...   the log of the first limit, ..., if it is a window           state
--   former      limits that were replaced, and by which client               limits_history
--   told        "id moment": the head of the queue whose session was         main, a client
--               notified last. Empty: a client created the keys, as the
--               slot was moving (node.py)
--   r<session>  until when the session is alive, and its last reply          main, fast_acquire,
--               (reply_cache.lua)                                            sessions
--   m<session>  the outbox: grants that the next reply to it brings          outbox
--
-- MEMBERS, `headgate:{name}:who`: a sorted set of waiters, holders and sessions (membership.lua). A
-- name with one session and no waiters and holders has none: the session's record says that it is
-- alive. In a Cluster every name has one.
--
-- Redis keeps a small HASH as a list while no value is longer than 64 bytes, and then a name takes
-- half as much memory. So the texts of state and record are short. After a longer value, HASH stays
-- a table. So tidy.lua deletes and writes it when the name is idle again.
--
-- `gate` is the state during a call. All moments are microseconds of the server's clock.
--   program, rules              the declaration as text, and a rule for each limit
--   t                           the moment of this call; it never goes back
--   not_before                  no grant for a moment before this one
--   reserved                    the latest granted moment
--   own_pause, whole_pause      the end of the last pause of this name; and of that of the whole
--                               limiter, if this call names one
--   fence                       the fence of the last grant
--   last_place                  the place of the last request in the queue
--   queued, held, sessions      how many members wait, hold or are sessions (nil: not counted)
--   waiting                     for each rule, the cost of all requests in the queue
--   next_expiry                 no lease ends before it; 0: there is no lease
--   next_sweep, sweep_cursor    when the queue is next searched for expired sessions; the rank at
--                               which the search goes on
--   restarted_at                requests that joined the queue before this moment were lost
--   keys_end, members_end       until when HASH lives; until when MEMBERS does, or 0 without it
--   tidied_at                   when the name was last tidied (tidy.lua); 0: not lately
--   large                       HASH has had a long value since `tidied_at`
--   offered                     no process has declared the limits
--   converted                   MEMBERS is no list any more (membership.lua)
--
-- Each call tries fast_acquire.lua first, and then main.lua, which names KEYS and ARGV. A server
-- with functions loads this text once, so each call resets the values of the call before.
--
-- `asked` is the units of a request, as text: "requests=3,tokens=900"; "-" for one of each.
--
-- Allocation dominates the cost of a call. A small table costs as much as 20 additions, and a
-- number that becomes text as much as 40 (python -m benchmarks.server_cost).

local NEVER = 9007199254740992 -- 2^53: no moment
local MOST = 4503599627370496 -- 2^52: the most of anything that is counted
local FORMAT = 7 -- of the state and the records: raise it when their numbers change
-- How long a session lives after a call. Twin: SESSION_LIFE in session/recovery.py.
local SESSION_LIFE = 10000000
-- How long the record of an expired session stays. Twin: KEEP in session/next_call.py.
local KEEP = 30000000
local UNHEARD = 4000000 -- the life of a session that receives no notification
local CLEANUP = 100 -- expired members that one step of a call removes
-- How long another client cannot declare replaced limits again. Twin: HOLD in limit_history.py.
local HOLD = 60000000
local FORMER = 8 -- replaced limits that are remembered
local DAY = 86400000000
-- The values of `declares` (main.lua).
local KNOWN, DECLARED, UPDATED, ASKED, OFFERED = '0', '1', '2', '3', '4'
local SHORT = 64 -- Redis keeps a hash as a list if no value is longer (hash-max-listpack-value)
local FEW = 64 -- and if it has few fields
-- Microseconds of a place (queue.lua). So places stay below 2^48 until the year 2112. Twin: PLACE
-- of protocol/members.py.
local PLACE = 16
local REMEMBERED = 100 -- declarations and states that stay in memory between calls

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local args -- ARGV of this call
local HASH, MEMBERS
local PROGRAM, SESSION, CALL, CALL_TEXT -- the first words of ARGV
local DECLARES, RESERVE_AHEAD
local CLUSTERED -- the server is one of a Cluster. There, MEMBERS exists as long as HASH
local gate
local server_time -- gate.t is ahead of it after the clock has stepped back
local need_ttl -- keys that this call may have created: they need a TTL
local members_stay -- MEMBERS exists throughout this call: a session is in it
local Kinds = {} -- makers of the rules of each kind
local Numbers, Membership, Limits, State, Gate, RequestId, ReplyCache, Expiry
local Holders, Sessions, Outbox, Queue, Repair, LimitsHistory, Setup, Operations, Tidy, Main
local FastAcquire

local function begin(its_keys, its_args)
  args, gate, need_ttl, members_stay = its_args, nil, nil, false
  HASH, MEMBERS = its_keys[1], its_keys[2]
  PROGRAM, SESSION, CALL_TEXT = args[1], args[2], args[3]
  CALL = tonumber(CALL_TEXT)
end

local function is_long(text)
  return text and #text > SHORT
end

local function mark_for_ttl(key)
  need_ttl = need_ttl or {}
  need_ttl[key] = true
end
