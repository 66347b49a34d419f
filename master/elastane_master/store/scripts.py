"""The two Lua scripts through which a master touches a job's keys.

A write is one script, because the check of the fencing token and what it guards must be one
atomic act: a master that lost the job can never slip a write in between. The same script makes
a repeated write harmless. A write whose reply was lost is sent again with the same sequence
number, and the script tells that it is there already.
"""

ACQUIRE = """
-- KEYS: fence. ARGV: 1 newest format, 2 newest state that the master reads.
-- Returns {token, sequence of the last write}; {0, format, state} of a job that a newer master wrote: its
-- fence is left alone, so that a running one is not put out by one that cannot take its place.
local written = redis.call('HMGET', KEYS[1], 'format', 'state')
if tonumber(written[1] or '0') > tonumber(ARGV[1]) or tonumber(written[2] or '0') > tonumber(ARGV[2]) then
  return {0, tonumber(written[1] or '0'), tonumber(written[2] or '0')}
end
redis.call('HDEL', KEYS[1], 'deleted')  -- of a job of that name before (see closed.py)
redis.call('PERSIST', KEYS[1])
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
local sequence = redis.call('HGET', KEYS[1], 'sequence')
return {token, tonumber(sequence or '0')}
"""

WRITE = """
-- KEYS: fence, log, snapshot, history, events
-- ARGV: 1 token, 2 sequence, 3 mode, 4 batch or '', 5 snapshot or '', 6 history kept,
--       7 events kept, 8 format, 9 state, 10 number of history entries,
--       then the history entries, then events as pairs of number and payload
-- Modes: 'write'; 'replace' fills the gap of a store that lost writes (with a snapshot);
--        'check' writes nothing, and asks whether the write `sequence` is still there.
-- Returns 'OK', 'DUPLICATE', 'FENCED:holder' or 'GAP:last sequence stored'.
-- A token lower than the writer's: the store lost the taking over itself, and nobody newer holds the job.
local fence = redis.call('HMGET', KEYS[1], 'token', 'sequence')
local holder, stored = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
local token, sequence, mode = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if holder > token then return 'FENCED:' .. fence[1] end
if holder == token and stored >= sequence then return 'DUPLICATE' end
local follows = holder == token and stored == sequence - 1 and mode ~= 'check'
if mode ~= 'replace' and not follows then return 'GAP:' .. stored end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'sequence', ARGV[2], 'format', ARGV[8], 'state', ARGV[9])
if ARGV[4] ~= '' then redis.call('XADD', KEYS[2], ARGV[2] .. '-0', 'batch', ARGV[4]) end
if ARGV[5] ~= '' then
  redis.call('SET', KEYS[3], ARGV[5])
  redis.call('XTRIM', KEYS[2], 'MINID', (sequence + 1) .. '-0')
end
local first_event = 11 + tonumber(ARGV[10])
for i = 11, first_event - 1 do
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], '*', 'commit', ARGV[i])
end
for i = first_event, #ARGV, 2 do
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[7], ARGV[i] .. '-0', 'event', ARGV[i + 1])
end
return 'OK'
"""
