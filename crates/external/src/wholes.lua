
-- Counters that are more than a number. Nodes decide about them, by the rules that every deployment has; here it is carried
-- out, if everything is still as the node thought it was. This is one library with `library.lua`, whose words it uses.
--
-- KEYS  1 the marker, 2 the stream, 3 the producers, then the cells, then the records of request ids
-- ARGV  epoch, how many births are wanted, how long records of ids are kept, then pieces, each of which is done or not:
--       how many looks, and for each: 'c' cell 'version birth', 'i' id text, 'p' producer text; '-' where nothing should be;
--       how many writes, and for each: 'c' cell text expires, 'd' cell, 'i' id text, 'p' producer text;
--       how many texts for the stream, and those
--
-- Answer: 'lost' and the epoch that is there, and nothing was done; or 'ok', the last of the births, and for each piece 1 if it
-- was done, or else for each look '=' if it was so, '-' if nothing is there, '+' and what is.
--
-- Pieces have no key in common. All looks come before all writes: what fails in between has changed nothing. Ids and producers are
-- written before what was done under them: whatever fails in between, nothing is counted twice.

-- A cell's numbers are not longer than this; the body comes behind them.
local NUMBERS_BYTES = 104
-- The most producers of a group: each is some bytes for ever.
local PRODUCERS_MAX = 65536

local function stamp(key)
  local numbers = redis.call('GETRANGE', key, 0, NUMBERS_BYTES)
  if numbers == '' then
    return '-'
  end
  local version, birth = numbers:match('^%S+ (%S+) %S+ (%S+)')
  return version .. ' ' .. birth
end

local function producer_of(name, expected)
  local there = redis.call('HGET', keys[3], name)
  if not there and expected == '-' and redis.call('HLEN', keys[3]) >= PRODUCERS_MAX then
    return 'full'
  end
  return there or '-'
end

-- Whether everything is as it was thought to be, and what it is.
local function look(count)
  local found, is_so = {}, true
  for index = 1, count do
    local kind, name, expected, there = take(), take(), take(), nil
    if kind == 'c' then
      there = stamp(keys[tonumber(name)])
    elseif kind == 'i' then
      there = redis.call('GET', keys[tonumber(name)]) or '-'
    else
      there = producer_of(name, expected)
    end
    found[index] = there == '-' and '-' or kind == 'c' and tonumber(name) or '+' .. there
    if there == expected then
      found[index] = '='
    else
      is_so = false
    end
  end
  return is_so, found
end

-- What is looked for by who was wrong: also what lies behind the numbers.
local function told_all(found)
  for index, there in ipairs(found) do
    if type(there) == 'number' then
      found[index] = '+' .. redis.call('GET', keys[there])
    end
  end
  return found
end

local function take_writes(count)
  local writes = {}
  for index = 1, count do
    local kind, name = take(), take()
    local write = { kind = kind, name = name }
    if kind ~= 'd' then
      write.text = take()
    end
    if kind == 'c' then
      write.expires = take()
    end
    writes[index] = write
  end
  return writes
end

local function carry_out(write, lifetime)
  local kind, name = write.kind, write.name
  if kind == 'p' then
    redis.call('HSET', keys[3], name, write.text)
    return
  end
  local key = keys[tonumber(name)]
  if kind == 'd' then
    redis.call('DEL', key)
  elseif kind == 'i' then
    redis.call('SET', key, write.text, 'PX', lifetime)
  else
    local expires = write.expires ~= NEVER and tonumber(write.expires) or EXPIRY_MAX
    if expires < EXPIRY_MAX then
      redis.call('SET', key, write.text, 'PXAT', string.format('%.0f', expires + GRACE_MS))
    else
      redis.call('SET', key, write.text)
    end
  end
end

local function run_wholes(call_keys, call_arguments)
  keys, arguments, at = call_keys, call_arguments, 0
  local epoch = take()
  local found_epoch = redis.call('HGET', keys[1], 'epoch')
  if found_epoch ~= epoch then
    return { 'lost', found_epoch or '' }
  end
  local wanted, lifetime = take(), string.format('%.0f', tonumber(take()) + GRACE_MS)
  local answers, all_writes = { 'ok', '' }, {}
  events = {}
  while at < #arguments do
    local is_so, found = look(tonumber(take()))
    local writes = take_writes(tonumber(take()))
    for _ = 1, tonumber(take()) do
      local text = take()
      if is_so then
        events[#events + 1] = text
      end
    end
    if is_so then
      answers[#answers + 1] = 1
      for _, write in ipairs(writes) do
        all_writes[#all_writes + 1] = write
      end
    else
      answers[#answers + 1] = told_all(found)
    end
  end
  if #events > 0 then
    redis.call('XADD', keys[2], '*', unpack(events))
    has_written = true
  end
  if wanted ~= '0' then
    answers[2] = string.format('%.0f', redis.call('HINCRBY', keys[1], 'births', wanted))
    has_written = true
  end
  for _, kinds in ipairs({ 'ip', 'cd' }) do
    for _, write in ipairs(all_writes) do
      if kinds:find(write.kind, 1, true) then
        carry_out(write, lifetime)
        has_written = true
      end
    end
  end
  return answers
end

redis.register_function('quipu_5_wholes', telling(run_wholes))
redis.register_function { function_name = 'quipu_5_wholes_spare', callback = telling(run_wholes), flags = { 'allow-oom' } }
