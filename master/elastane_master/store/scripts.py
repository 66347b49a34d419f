"""The Lua scripts through which a master touches a job's keys.

A write is one script, because the check of the fencing token and what it guards must be one
atomic act: a master that lost the job can never slip a write in between. The same script makes
a repeated write harmless. A write whose reply was lost is sent again with the same sequence
number, and the script tells that it is there already.

A script that fails in its middle keeps what it did until then. So whatever can stop a write is looked at
before anything is changed: whether each key is as the last write left it, and whether every entry's number is
free. The fence is written last: what it does not know of was never acknowledged.
"""

ACQUIRE = """
-- KEYS: fence. ARGV: 1 newest format, 2 newest state that the master reads.
-- Returns {token, then the fence's fields and values}; {0, format, state} of a job that a newer master wrote:
-- its fence is left alone, so that a running one is not put out by one that cannot take its place.
local written = redis.call('HMGET', KEYS[1], 'format', 'state')
if tonumber(written[1] or '0') > tonumber(ARGV[1]) or tonumber(written[2] or '0') > tonumber(ARGV[2]) then
  return {0, tonumber(written[1] or '0'), tonumber(written[2] or '0')}
end
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, token)
return answer
"""

WRITE = """
-- KEYS: fence, log, snapshot, history, events
-- ARGV: 1 token, 2 sequence, 3 mode, 4 batch or '', 5 snapshot or '', 6 history kept, 7 events kept,
--       8 format, 9 state, 10 stamp of the job, 11 end of the chain, 12 number of the last commit,
--       13 of the last event, 14 commits and 15 events that there should be ('': those that there are),
--       16 number of history entries, then these, then events as pairs of number and payload
-- Modes: 'write'; 'replace' makes a store whole (with a snapshot): what history and events hold beyond the
--        first entry that is written is taken out, since it comes again or belongs to nothing;
--        'check' writes nothing, and asks whether the write `sequence` is there, and all keys with it.
-- Returns 'OK', 'DUPLICATE', 'FENCED:holder' or 'GAP:' with the last sequence stored, length and newest id of
-- the history and of the events, and which keys are not as the last write left them.
-- A token lower than the writer's: the store lost the taking over itself, and nobody newer holds the job.
local fence = redis.call('HMGET', KEYS[1], 'token', 'sequence', 'log', 'snapshot', 'history', 'events')
local holder, stored = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
local token, sequence, mode = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if holder > token then return 'FENCED:' .. fence[1] end
local commits, first_event = tonumber(ARGV[16]), 17 + tonumber(ARGV[16])
local first_commit = ARGV[10] .. '-' .. string.format('%d', tonumber(ARGV[12]) - commits + 1)
local bytes = redis.call('STRLEN', KEYS[3])
local history, events = redis.call('XLEN', KEYS[4]), redis.call('XLEN', KEYS[5])
local changed = ''
if not fence[2] then changed = changed .. ' fence' end
if fence[3] and tonumber(fence[3]) ~= redis.call('XLEN', KEYS[2]) then changed = changed .. ' log' end
if fence[4] and tonumber(fence[4]) ~= bytes then changed = changed .. ' snapshot' end
if history < tonumber(fence[5] or '0') then changed = changed .. ' history' end
if events < tonumber(fence[6] or '0') then changed = changed .. ' events' end
local function taken(key, id) return #redis.call('XRANGE', key, id, '+', 'COUNT', 1) > 0 end
local function newest(key)
  local entry = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  return entry and entry[1] or '0-0'
end
if mode ~= 'replace' then
  local is_there = holder == token and stored >= sequence
  local follows = holder == token and stored == sequence - 1 and mode == 'write'
  if stored > 0 and changed ~= '' then
    is_there, follows = false, false
  elseif follows then
    if ARGV[4] ~= '' and taken(KEYS[2], ARGV[2] .. '-0') then changed = changed .. ' log' end
    if commits > 0 and taken(KEYS[4], first_commit) then changed = changed .. ' history' end
    if first_event <= #ARGV and taken(KEYS[5], ARGV[first_event] .. '-0') then
      changed = changed .. ' events'
    end
    follows = changed == '' or changed == ' fence'
  end
  if is_there then
    -- Said again, so that whoever waits for replicas waits for this.
    if mode == 'write' then redis.call('HSET', KEYS[1], 'sequence', fence[2]) end
    return 'DUPLICATE'
  end
  if not follows then
    return table.concat({'GAP', stored, history, newest(KEYS[4]), events, newest(KEYS[5]), changed}, ':')
  end
else
  if holder == token and stored >= sequence then
    redis.call('HSET', KEYS[1], 'sequence', fence[2])
    return 'DUPLICATE'
  end
  local function cut(key, first)
    while true do
      local surplus = redis.call('XRANGE', key, first, '+', 'COUNT', 1000)
      if #surplus == 0 then break end
      for _, entry in ipairs(surplus) do redis.call('XDEL', key, entry[1]) end
    end
    if redis.call('XLEN', key) == 0 then
      redis.call('DEL', key)
    else  -- numbers that were taken out are free again
      redis.call('XSETID', key, newest(key))
    end
  end
  cut(KEYS[4], first_commit)
  if first_event <= #ARGV then cut(KEYS[5], ARGV[first_event] .. '-0') end
end
if ARGV[4] ~= '' then redis.call('XADD', KEYS[2], ARGV[2] .. '-0', 'batch', ARGV[4]) end
for i = 17, first_event - 1 do
  local id = ARGV[10] .. '-' .. string.format('%d', tonumber(ARGV[12]) - commits + i - 16)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], id, 'commit', ARGV[i])
end
for i = first_event, #ARGV, 2 do
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[7], ARGV[i] .. '-' .. ARGV[10], 'event', ARGV[i + 1])
end
if ARGV[5] ~= '' then
  bytes = #ARGV[5]
  redis.call('SET', KEYS[3], ARGV[5])
  redis.call('DEL', KEYS[2])
end
if commits > 0 or mode == 'replace' then history = redis.call('XLEN', KEYS[4]) end
if first_event <= #ARGV or mode == 'replace' then events = redis.call('XLEN', KEYS[5]) end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'sequence', ARGV[2], 'format', ARGV[8], 'state', ARGV[9],
  'chain', ARGV[11], 'commits', ARGV[12], 'event', ARGV[13],
  'log', redis.call('XLEN', KEYS[2]), 'snapshot', bytes,
  'history', ARGV[14] ~= '' and ARGV[14] or history, 'events', ARGV[15] ~= '' and ARGV[15] or events)
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
