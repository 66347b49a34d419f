"""Lua scripts for all accesses to a job's keys.

A write is one script, because checking the fencing token and writing must be one atomic operation: a master
that lost the job can never slip a write in between. The same script makes repeated writes harmless: a write
whose reply was lost is sent again with the same sequence number, and the script reports that it is already
stored.

A script that fails half-way keeps its changes so far. Therefore everything that can stop a write is checked
before anything is changed: whether each key is as the last write left it, and whether every entry's number is
free. The fence is written last: data that it does not cover was never acknowledged.
"""

from __future__ import annotations

from elastane_master.store.errors import Fenced

ACQUIRE = """
-- KEYS: fence. ARGV: 1 newest format, 2 newest state that the master reads, 3 '1': it has looked at the job's
-- other keys, and can read them; 4 id of the master.
-- Returns {token, then the fence's fields and values}; {0, format, state} of a job that a newer master wrote:
-- its fence is left alone, so that a running one is not fenced by one that cannot take its place. {-1} where
-- the fence does not say who wrote the job: first it has to be looked at.
local written = redis.call('HMGET', KEYS[1], 'format', 'state', 'sequence')
if tonumber(written[1] or '0') > tonumber(ARGV[1]) or tonumber(written[2] or '0') > tonumber(ARGV[2]) then
  return {0, tonumber(written[1] or '0'), tonumber(written[2] or '0')}
end
if not written[3] and ARGV[3] ~= '1' then return {-1} end
redis.call('HDEL', KEYS[1], 'deleted')  -- of a job of that name before (see closed.py)
redis.call('HSET', KEYS[1], 'holder', ARGV[4])
redis.call('PERSIST', KEYS[1])
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, token)
return answer
"""

WRITE = """
-- KEYS: fence, log, snapshot, history, events
-- ARGV: 1 token, 2 sequence, 3 mode, 4 batch or '', 5 snapshot or '', 6 history kept, 7 events kept,
--       8 format, 9 state, 10 stamp of the job, 11 end of the chain, 12 number of the first commit,
--       13 commits beyond this number are taken out or '', 14 commits and 15 events that there should be
--       ('': those that there are), 16 number of history entries, then these, then events as pairs of number
--       and payload
-- Modes: 'write'; 'replace' makes a store whole (with a snapshot), and leaves out entries that are there;
--        'check' writes nothing, and asks whether the write `sequence` is there, and all keys with it.
-- Returns 'OK', 'DUPLICATE', 'FENCED:holder' or 'GAP:' with the last sequence stored, length and newest id of
-- the history and of the events, and which keys are not as the last write left them.
-- A token lower than the writer's: the store lost the taking over itself, and nobody newer holds the job.
local fence = redis.call(
  'HMGET', KEYS[1], 'token', 'sequence', 'log', 'snapshot', 'history', 'events', 'commits', 'event')
local holder, stored = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
local token, sequence, mode = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if holder > token then return 'FENCED:' .. fence[1] end
local commits, first_commit, first_event = tonumber(ARGV[16]), tonumber(ARGV[12]), 17 + tonumber(ARGV[16])
local log, bytes = redis.call('XLEN', KEYS[2]), redis.call('STRLEN', KEYS[3])
local history, events = redis.call('XLEN', KEYS[4]), redis.call('XLEN', KEYS[5])
local changed = ''
if not fence[2] then changed = changed .. ' fence' end
if fence[3] and tonumber(fence[3]) ~= log then changed = changed .. ' log' end
if fence[4] and tonumber(fence[4]) ~= bytes then changed = changed .. ' snapshot' end
if history < tonumber(fence[5] or '0') then changed = changed .. ' history' end
if events < tonumber(fence[6] or '0') then changed = changed .. ' events' end
local function commit_id(number) return ARGV[10] .. '-' .. string.format('%d', number) end
local function taken(key, id) return #redis.call('XRANGE', key, id, '+', 'COUNT', 1) > 0 end
local function newest(key)
  local entry = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  return entry and entry[1] or '0-0'
end
local function newest_commit()
  local stamp, number = string.match(newest(KEYS[4]), '^(%d+)-(%d+)$')
  return stamp == ARGV[10] and tonumber(number) or 0  -- older masters did not number them
end
local function newest_event() return tonumber(string.match(newest(KEYS[5]), '^(%d+)')) end
-- Another job's entries tell by their stamp, whatever their numbers: swapped keys are not written to.
local function is_free_for_commit(number)
  local stamp, last = string.match(newest(KEYS[4]), '^(%d+)-(%d+)$')
  if stamp == ARGV[10] then return tonumber(last) < number end
  return tonumber(stamp) < 2^42  -- an older master's
end
local function is_free_for_event(number)
  local last, stamp = string.match(newest(KEYS[5]), '^(%d+)-(%d+)$')
  return tonumber(last) < number and (stamp == '0' or stamp == ARGV[10])
end
if holder == token and stored >= sequence and (mode == 'replace' or changed == '') then
  -- Said again, so that whoever waits for replicas waits for this.
  if mode ~= 'check' then redis.call('HSET', KEYS[1], 'sequence', fence[2]) end
  return 'DUPLICATE'
end
local commit_there, event_there = 0, 0
if mode == 'replace' then
  while ARGV[13] ~= '' do
    local surplus = redis.call('XRANGE', KEYS[4], commit_id(tonumber(ARGV[13]) + 1), '+', 'COUNT', 1000)
    if #surplus == 0 then break end
    for _, entry in ipairs(surplus) do redis.call('XDEL', KEYS[4], entry[1]) end
  end
  commit_there, event_there = newest_commit(), newest_event()
else
  local follows = holder == token and stored == sequence - 1 and mode == 'write'
  if follows and (stored == 0 or changed == '') then
    if ARGV[4] ~= '' and taken(KEYS[2], ARGV[2] .. '-0') then changed = changed .. ' log' end
    if commits > 0 and not is_free_for_commit(first_commit) then changed = changed .. ' history' end
    if first_event <= #ARGV and not is_free_for_event(tonumber(ARGV[first_event])) then
      changed = changed .. ' events'
    end
    follows = changed == '' or changed == ' fence'
  else
    follows = false
  end
  if not follows then
    return table.concat({'GAP', stored, history, newest(KEYS[4]), events, newest(KEYS[5]), changed}, ':')
  end
end
if ARGV[4] ~= '' then
  redis.call('XADD', KEYS[2], ARGV[2] .. '-0', 'batch', ARGV[4])
  log = log + 1
end
for i = 0, commits - 1 do
  if first_commit + i > commit_there then
    redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], commit_id(first_commit + i), 'commit', ARGV[17 + i])
  end
end
for i = first_event, #ARGV, 2 do
  if tonumber(ARGV[i]) > event_there then
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[7], ARGV[i] .. '-' .. ARGV[10], 'event', ARGV[i + 1])
  end
end
if ARGV[5] ~= '' then
  log, bytes = 0, #ARGV[5]
  redis.call('SET', KEYS[3], ARGV[5])
  redis.call('DEL', KEYS[2])
end
local is_first = mode == 'replace' or not fence[7]
local commit, event = fence[7], fence[8]
history, events = fence[5], fence[6]
if commits > 0 or is_first then
  history = ARGV[14] ~= '' and ARGV[14] or redis.call('XLEN', KEYS[4])
  commit = string.format('%d', is_first and newest_commit() or first_commit + commits - 1)
end
if first_event <= #ARGV or is_first then
  events = ARGV[15] ~= '' and ARGV[15] or redis.call('XLEN', KEYS[5])
  event = string.format('%d', is_first and newest_event() or tonumber(ARGV[#ARGV - 1]))
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'sequence', ARGV[2], 'format', ARGV[8], 'state', ARGV[9],
  'chain', ARGV[11], 'log', log, 'snapshot', bytes, 'history', history, 'commits', commit, 'events', events,
  'event', event)
return 'OK'
"""

DROP = """
-- KEYS: fence, log, snapshot, history, events. ARGV: 1 token. Takes everything of a job away. Returns 'OK' or
-- 'FENCED:holder'.
local holder = redis.call('HGET', KEYS[1], 'token')
if tonumber(holder or '0') > tonumber(ARGV[1]) then return 'FENCED:' .. holder end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return 'OK'
"""


def require_ours(job: str, token: int, reply: str) -> str:
    """Return a script's reply. Raises Fenced if the job belongs to another master. token: the caller's."""
    if reply.startswith("FENCED"):
        holder = reply.partition(":")[2]
        raise Fenced(
            f"another master took job {job} over (its token is {holder}, ours {token})",
            job=job,
            token=token,
            holder=holder,
        )
    return reply
