#!lua name=quipu_5
-- The rules of counting where the counters lie: many requests of one group of slots, decided as one.
--
-- This says what `decide` in crates/counting/src/rules.rs says, and a test compares the two field by field.
--
-- KEYS  1 the marker, 2 the stream, then the cells, then the records of request ids
-- ARGV  epoch, time, how long ids are remembered, how many cells, how many of them are not for runs alone,
--       how many limits, and for each: floor, ceiling, saturate, expiry of what is born, disabled;
--       if there are any, for each cell the number of its limits, 0 for none;
--       then the requests, see `request`, `unit` and `run_of_additions`
--
-- Answer: 'lost' and the epoch that is there, and nothing was done; or 'ok' and a text for each request:
--   '!' refusal existed exists previous value version updated birth expires     it was decided
--   value version updated birth expires                                        it was added, and this is the counter now
--   '=' what is remembered under its id                                        it was decided before
--   '?'                                                                        it belongs to a group that was
--   '-'                                                                        what guards it did not hold
--   '#'                                                                        nothing was done: one of its counters has a body,
--                                                                              about which a node has to decide
--
-- Whole numbers are decimal texts. Lua has doubles only, so arithmetic goes in two halves where they would not do.
-- Everything is read before and written after deciding: what fails in between has changed nothing. What fails while it is being
-- written answers 'HALFDONE'.

local NEVER = 'n'
local MIN, MAX = '-9223372036854775808', '9223372036854775807'
local VERSION_MAX = '18446744073709551615'
-- Texts up to this length are exact as doubles, and so are their sums.
local SHORT = 15
-- The lower half holds ten digits.
local HALF, HALF_DIGITS = 1e10, 10
-- Redis removes by its own clock, which is not ours: it gets some time more.
local GRACE_MS = 60000
-- Later than this there is nothing to be removed.
local EXPIRY_MAX = 9e15

local NONE, OVERFLOW, BELOW_FLOOR, ABOVE_CEILING, CONDITION_UNMET, DISABLED, GROUP_ABORTED =
  '0', '1', '2', '3', '4', '5', '6'

local function halves(text)
  local digits, sign = text, 1
  if text:byte(1) == 45 then
    digits, sign = text:sub(2), -1
  end
  if #digits <= HALF_DIGITS then
    return 0, sign * tonumber(digits)
  end
  return sign * tonumber(digits:sub(1, -HALF_DIGITS - 1)), sign * tonumber(digits:sub(-HALF_DIGITS))
end

local function sum(a, b)
  if #a <= SHORT and #b <= SHORT then
    return string.format('%d', tonumber(a) + tonumber(b))
  end
  local high, low = halves(a)
  local other_high, other_low = halves(b)
  high, low = high + other_high, low + other_low
  -- Both halves get the sign of the whole.
  if low >= HALF or (high < 0 and low > 0) then
    high, low = high + 1, low - HALF
  elseif low <= -HALF or (high > 0 and low < 0) then
    high, low = high - 1, low + HALF
  end
  if high < 0 and low > 0 then
    high, low = high + 1, low - HALF
  elseif high > 0 and low < 0 then
    high, low = high - 1, low + HALF
  end
  if high == 0 then
    return string.format('%.0f', low + 0)
  elseif high < 0 then
    return string.format('-%.0f%010.0f', 0 - high, 0 - low)
  end
  return string.format('%.0f%010.0f', high, low)
end

-- Negative, zero or positive, as `a` is to `b`.
local function compare(a, b)
  if a == b then
    return 0
  end
  if #a <= SHORT and #b <= SHORT then
    return tonumber(a) - tonumber(b)
  end
  local high, low = halves(a)
  local other_high, other_low = halves(b)
  if high ~= other_high then
    return high - other_high
  end
  return low - other_low
end

local function negative(text)
  if text == '0' then
    return text
  elseif text:byte(1) == 45 then
    return text:sub(2)
  end
  return '-' .. text
end

local function difference(after, before)
  if #after <= SHORT and #before <= SHORT then
    return string.format('%d', tonumber(after) - tonumber(before))
  end
  return sum(after, negative(before))
end

local function larger(a, b)
  if compare(a, b) < 0 then return b end
  return a
end

local function smaller(a, b)
  if compare(a, b) > 0 then return b end
  return a
end

local function fits(text)
  return #text <= SHORT or compare(text, MIN) >= 0 and compare(text, MAX) <= 0
end

local function one_more(version)
  if version == VERSION_MAX then return version end
  return sum(version, '1')
end

-- What a call works on. There is one call at a time.
local keys, arguments, at, now
-- Cells that only runs of additions touch are texts, as they lie in Redis, until somebody needs to know more: `open`.
local texts, first_text
local cells, remembered, limits_of, events, births
local dirty, dirty_ids, fresh_ids
-- Which of the cells are of counters with a body: those are left to `wholes.lua`. Whether there are any.
local wholes, has_wholes
-- Whether this call has written anything.
local has_written

local function take()
  at = at + 1
  return arguments[at]
end

local function is_live(cell)
  return cell.expires == NEVER or compare(cell.expires, now) > 0
end

local function live_cell(index)
  local cell = cells[index]
  if cell and is_live(cell) then return cell end
  return nil
end

local function told(refusal, existed, exists, previous, cell)
  return { refusal = refusal, existed = existed and '1' or '0', exists = exists and '1' or '0', previous = previous,
    cell = cell }
end

local ABSENT = { value = '0', version = '0', updated = '0', birth = '0', expires = NEVER }

local function state(live, refusal)
  local cell = live or ABSENT
  return told(refusal or NONE, live ~= nil, live ~= nil, cell.value, cell)
end

local function text_of(reply)
  local cell = reply.cell
  return '!' .. reply.refusal .. ' ' .. reply.existed .. ' ' .. reply.exists .. ' ' .. reply.previous .. ' ' .. cell.value
    .. ' ' .. cell.version .. ' ' .. cell.updated .. ' ' .. cell.birth .. ' ' .. cell.expires
end

-- An outcome as counting remembers it. A state of the service is none.
local function remember(id, fingerprint, reply)
  if reply.refusal == DISABLED then
    return
  end
  local cell = reply.cell
  remembered[id] = fingerprint .. ' ' .. now .. ' ' .. reply.refusal .. ' ' .. reply.existed .. ' ' .. reply.exists .. ' '
    .. cell.value .. ' ' .. reply.previous .. ' ' .. cell.version .. ' ' .. cell.birth
  if not fresh_ids[id] then
    fresh_ids[id] = true
    dirty_ids[#dirty_ids + 1] = id
  end
end

-- Conditions, expiries and requests are read before anything is decided, so that every argument is passed.

local function take_condition()
  local kind = take()
  if kind == 'v' then
    return { kind = kind, version = take() }
  elseif kind == 't' then
    return { kind = kind, birth = take(), version = take() }
  end
  return { kind = kind }
end

local function holds(condition, live)
  local kind = condition.kind
  if kind == 'y' then
    return true
  elseif kind == 'x' then
    return live ~= nil
  elseif kind == 'n' then
    return live == nil
  elseif kind == 'v' then
    return (live and live.version or '0') == condition.version
  end
  return live ~= nil and live.birth == condition.birth and live.version == condition.version
end

-- 'k' as it is, 'c' never, 'a' then, 'i' then if it has none.
local function take_expiry()
  local kind = take()
  if kind == 'a' or kind == 'i' then
    return { kind = kind, time = take() }
  end
  return { kind = kind }
end

local function expiry_after(expiry, before)
  local kind = expiry.kind
  if kind == 'k' or (kind == 'i' and before ~= NEVER) then
    return before
  elseif kind == 'c' then
    return NEVER
  end
  return expiry.time
end

local function request()
  local op, cell, id, fingerprint = take(), tonumber(take()), tonumber(take()), nil
  if id ~= 0 then
    fingerprint = take()
  end
  -- The most common one has all it needs at once.
  if op == 'a' then
    return { op = op, cell = cell, id = id, fingerprint = fingerprint, delta = take() }
  end
  local ask = { op = op, cell = cell, id = id, fingerprint = fingerprint }
  if op == 'A' then
    ask.delta, ask.min, ask.max, ask.saturate = take(), take(), take(), take() == '1'
    ask.expiry, ask.condition = take_expiry(), take_condition()
  elseif op == 's' then
    ask.value, ask.expiry, ask.condition = take(), take_expiry(), take_condition()
  elseif op == 'c' or op == 'z' or op == 'd' then
    ask.condition = take_condition()
  elseif op == 'e' then
    ask.expiry, ask.when = take_expiry(), take()
  elseif op == 'k' or op == 'o' then
    ask.edition = take()
  end
  return ask
end

-- What became of a counter, for the stream: kind, difference, value, version, updated, birth, expires, and under which id.
local function tell(ask, kind, previous, cell)
  local key = keys[ask.cell]
  local prefix = #keys[1] + 1
  local under = ''
  if ask.id ~= 0 then
    local length = #key - prefix
    under = ' ' .. ask.fingerprint .. ' ' .. keys[ask.id]:sub(#key + #tostring(length) + 3)
  end
  events[#events + 1] = key:sub(prefix + 1)
  events[#events + 1] = kind .. ' ' .. difference(cell.value, previous) .. ' ' .. cell.value .. ' ' .. cell.version .. ' '
    .. cell.updated .. ' ' .. cell.birth .. ' ' .. cell.expires .. under
end

-- A counter that ended now.
local function ended(live)
  return { value = '0', version = '0', updated = now, birth = live.birth, expires = NEVER }
end

local function put(index, cell)
  cells[index] = cell
  dirty[index] = true
end

local function accepted(ask, live, after, birth)
  local previous = live and live.value or '0'
  local exists = is_live(after)
  if exists then
    put(ask.cell, after)
    if not live then
      births = birth
    end
    tell(ask, ask.op:lower(), previous, after)
  elseif live then
    put(ask.cell, nil)
    tell(ask, 'd', previous, ended(live))
  end
  return told(NONE, live ~= nil, exists, previous, after)
end

local function born_or_changed(ask, live, value, expiry, limits, birth)
  if live then
    return accepted(ask, live, { value = value, version = one_more(live.version), updated = larger(live.updated, now),
      birth = live.birth, expires = expiry_after(expiry, live.expires) })
  end
  local expires
  if expiry.kind == 'k' or expiry.kind == 'c' then
    expires = limits and limits.born or NEVER
  else
    expires = expiry_after(expiry, NEVER)
  end
  return accepted(ask, nil, { value = value, version = '1', updated = now, birth = string.format('%.0f', birth),
    expires = expires }, birth)
end

local KEEP, ALWAYS = { kind = 'k' }, { kind = 'y' }

local function bounded_sum(ask, live, limits)
  local value = live and live.value or '0'
  local total = sum(value, ask.delta)
  if not limits and not ask.min then
    if fits(total) then return total end
    return nil, OVERFLOW
  end
  local floor, ceiling = limits and limits.floor or MIN, limits and limits.ceiling or MAX
  local reachable = live ~= nil or (compare(floor, '0') <= 0 and compare(ceiling, '0') >= 0)
  if live then
    floor, ceiling = smaller(floor, value), larger(ceiling, value)
  end
  local lower, upper = larger(ask.min or MIN, floor), smaller(ask.max or MAX, ceiling)
  if compare(lower, upper) > 0 then
    if ask.delta:byte(1) == 45 then return nil, BELOW_FLOOR end
    return nil, ABOVE_CEILING
  end
  local saturate = (ask.saturate or (limits and limits.saturate)) and reachable
  if compare(total, upper) > 0 then
    if not saturate then
      return nil, upper == MAX and OVERFLOW or ABOVE_CEILING
    end
    total = upper
  elseif compare(total, lower) < 0 then
    if not saturate then
      return nil, lower == MIN and OVERFLOW or BELOW_FLOOR
    end
    total = lower
  end
  if not fits(difference(total, value)) then
    return nil, OVERFLOW
  end
  return total
end

local function decide_add(ask, live, limits, birth)
  local total, refusal = bounded_sum(ask, live, limits)
  if not total then
    return state(live, refusal)
  end
  local expiry = ask.expiry or KEEP
  if live and total == live.value and ask.delta ~= '0' and expiry_after(expiry, live.expires) == live.expires then
    return state(live)
  end
  return born_or_changed(ask, live, total, expiry, limits, birth)
end

local function decide_set(ask, live, limits, birth)
  if limits and compare(ask.value, limits.floor) < 0 then
    return state(live, BELOW_FLOOR)
  elseif limits and compare(ask.value, limits.ceiling) > 0 then
    return state(live, ABOVE_CEILING)
  end
  return born_or_changed(ask, live, ask.value, ask.expiry, limits, birth)
end

local function decide_reset(ask, live, limits, birth)
  if not live then
    return state(nil)
  end
  ask.value, ask.expiry = '0', KEEP
  return decide_set(ask, live, limits, birth)
end

local function decide_delete(ask, live)
  if not live then
    return state(nil)
  end
  put(ask.cell, nil)
  tell(ask, 'd', live.value, ended(live))
  return told(NONE, true, false, live.value, ABSENT)
end

-- Expiries compare as times, and never is later than all of them.
local function is_later(a, b)
  if a == NEVER or b == NEVER then
    return a == NEVER and b ~= NEVER
  end
  return compare(a, b) > 0
end

local function decide_expire(ask, live)
  if not live then
    return state(nil, CONDITION_UNMET)
  end
  local expires, has_expiry, when = expiry_after(ask.expiry, live.expires), live.expires ~= NEVER, ask.when
  local allowed = true
  if when == '1' then
    allowed = not has_expiry
  elseif when == '2' then
    allowed = has_expiry
  elseif when == '3' or when == '5' then
    allowed = has_expiry and is_later(expires, live.expires)
  elseif when == '4' then
    allowed = is_later(live.expires, expires)
  elseif when == '6' then
    allowed = has_expiry and is_later(live.expires, expires)
  end
  if not allowed then
    return state(live, CONDITION_UNMET)
  elseif expires == live.expires then
    return state(live)
  end
  local after = { value = live.value, version = one_more(live.version), updated = larger(live.updated, now),
    birth = live.birth, expires = expires }
  return accepted(ask, live, after)
end

local function decide(ask, birth)
  local op, live, limits = ask.op, live_cell(ask.cell), limits_of[ask.cell]
  if op == 'r' then
    return state(live)
  elseif op ~= 'c' and limits and limits.disabled then
    return state(live, DISABLED)
  elseif not holds(ask.condition or ALWAYS, live) then
    return state(live, CONDITION_UNMET)
  elseif op == 'a' or op == 'A' then
    return decide_add(ask, live, limits, birth)
  elseif op == 's' then
    return decide_set(ask, live, limits, birth)
  elseif op == 'z' then
    return decide_reset(ask, live, limits, birth)
  elseif op == 'd' then
    return decide_delete(ask, live)
  elseif op == 'e' then
    return decide_expire(ask, live)
  end
  return state(live)
end

local function single(ask, replies)
  local known = remembered[ask.id]
  if known then
    replies[#replies + 1] = '=' .. known
    return true
  end
  local reply = decide(ask, births + 1)
  if ask.id ~= 0 then
    remember(ask.id, ask.fingerprint, reply)
  end
  replies[#replies + 1] = text_of(reply)
  return reply.refusal == NONE
end

-- Claims of ids of counters in stripes, see striping.rs: 'k' has nobody with an older edition do here what is asked under this id, 'o' takes
-- such a claim away again. A claim lies where what was decided would lie, and never replaces that.
local function claim(ask, replies)
  local known = remembered[ask.id]
  local edition = known and known:match('^0 %d+ 0 c c (%d+) ')
  if known and not edition then
    replies[#replies + 1] = '=' .. known
    return
  elseif edition and compare(edition, ask.edition) > 0 then
    replies[#replies + 1] = '!' .. CONDITION_UNMET .. ' 0 0 0 0 ' .. edition .. ' 0 0 n'
    return
  end
  remembered[ask.id] = ask.op == 'k' and '0 ' .. now .. ' 0 c c ' .. ask.edition .. ' 0 0 0' or nil
  if not fresh_ids[ask.id] then
    fresh_ids[ask.id] = true
    dirty_ids[#dirty_ids + 1] = ask.id
  end
  replies[#replies + 1] = '!0 0 0 0 0 0 0 0 n'
end

-- Brings a cell that is a text to its parts. One that has a body is noted.
local function open(index)
  local text = texts[index]
  if not text then
    return
  end
  texts[index] = nil
  local value, version, updated, birth, expires = text:match('^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  if value then
    cells[index] = { value = value, version = version, updated = updated, birth = birth, expires = expires }
  else
    wholes[index] = true
  end
end

-- Numbers up to this length, and the sum of any two of them, are exact, and are printed as they are.
local QUICK = 13

-- By far the most common requests: something small is added to counters without limits. They are decided as `single` would decide
-- them, but with as few texts as possible: a record of an id, and what the stream is told, are one and the same.
--
-- 'q' how many, the first of their ids or 0, and for each: cell, delta, and with ids 'fingerprint +delta '. 'Q': they are of one client.
local function run_of_additions(replies)
  local match, is_one_client = string.match, arguments[at + 1] == 'Q'
  local count, id = tonumber(arguments[at + 2]), tonumber(arguments[at + 3])
  local has_ids, is_waiting, now_length = id > 0, false, #now
  local reply_at, event_at, id_at = #replies, #events, #dirty_ids
  at = at + 3
  for _ = 1, count do
    local index, delta, told = tonumber(arguments[at + 1]), arguments[at + 2], nil
    if has_ids then
      at, told = at + 3, arguments[at + 3]
    else
      at, told = at + 2, '+' .. delta .. ' '
    end
    local text, value, version, updated, birth = texts[index], nil, nil, nil, nil
    if is_waiting or has_ids and remembered[id] then
      -- It is not for here.
    elseif text then
      value, version, updated, birth = match(text, '^(%-?%d+) (%d+) (%d+) (%d+) n$')
    elseif index >= first_text and not cells[index] and not wholes[index] then
      value, version, updated, birth = '0', '0', now, string.format('%.0f', births + 1)
    end
    if value and #value <= QUICK and #version <= QUICK and #updated == now_length and updated <= now then
      if not text then
        births = births + 1
      end
      text = (value + delta) .. ' ' .. (version + 1) .. ' ' .. now .. ' ' .. birth .. ' n'
      texts[index], dirty[index] = text, true
      told = told .. text
      if has_ids then
        remembered[id], fresh_ids[id] = told, true
        id_at = id_at + 1
        dirty_ids[id_at] = id
      end
      events[event_at + 1], events[event_at + 2] = keys[has_ids and id or index], told
      event_at, reply_at = event_at + 2, reply_at + 1
      replies[reply_at] = text
    else
      open(index)
      if is_waiting or wholes[index] then
        is_waiting = is_one_client
        replies[reply_at + 1] = '#'
      else
        single({ op = 'a', cell = index, id = id, fingerprint = match(told, '^%d+'), delta = delta }, replies)
      end
      reply_at, event_at, id_at = #replies, #events, #dirty_ids
    end
    if has_ids then
      id = id + 1
    end
  end
end

-- All of them or none.
local function atomic(count, replies)
  local asks, is_known = {}, false
  for index = 1, count do
    asks[index] = request()
    is_known = is_known or remembered[asks[index].id] ~= nil
  end
  if is_known then
    for _, ask in ipairs(asks) do
      local known = remembered[ask.id]
      replies[#replies + 1] = known and '=' .. known or '?'
    end
    return
  end
  local before, was_dirty, births_before, events_before = {}, {}, births, #events
  for _, ask in ipairs(asks) do
    before[ask.cell] = cells[ask.cell] or false
    was_dirty[ask.cell] = dirty[ask.cell]
  end
  local decided, refused = {}, nil
  for index, ask in ipairs(asks) do
    -- Births are given out by counting items, also those that are born by none of them.
    decided[index] = decide(ask, births_before + index)
    if decided[index].refusal ~= NONE then
      refused = index
      break
    end
  end
  if refused then
    births = births_before
    for cell, known in pairs(before) do
      cells[cell] = known or nil
      dirty[cell] = was_dirty[cell]
    end
    for index = #events, events_before + 1, -1 do
      events[index] = nil
    end
    local refusal = decided[refused].refusal
    for index, ask in ipairs(asks) do
      decided[index] = state(live_cell(ask.cell), index == refused and refusal or GROUP_ABORTED)
    end
    is_known = refusal == DISABLED
  else
    births = births_before + count
  end
  for index, ask in ipairs(asks) do
    if ask.id ~= 0 and not is_known then
      remember(ask.id, ask.fingerprint, decided[index])
    end
    replies[#replies + 1] = text_of(decided[index])
  end
end

-- 'g' how many: they belong together. 'w' how many checks, how many requests they guard, how many arguments those take.
local function unit(replies)
  local op = arguments[at + 1]
  if op == 'g' then
    at = at + 1
    atomic(tonumber(take()), replies)
  elseif op == 'w' then
    at = at + 1
    local checks, guarded, length = tonumber(take()), tonumber(take()), tonumber(take())
    local all_hold = true
    for _ = 1, checks do
      all_hold = single(request(), replies) and all_hold
    end
    local stop = at + length
    while all_hold and at < stop do
      unit(replies)
    end
    if not all_hold then
      at = stop
      for _ = 1, guarded do
        replies[#replies + 1] = '-'
      end
    end
  elseif op == 'k' or op == 'o' then
    claim(request(), replies)
  else
    single(request(), replies)
  end
end

-- Passes a unit by: how many requests it has, and whether one of them is for a counter with a body.
local function pass()
  local op = arguments[at + 1]
  if op ~= 'g' and op ~= 'w' then
    return 1, wholes[request().cell]
  end
  at = at + 1
  local asks, count, length = tonumber(take()), nil, 0
  count = asks
  if op == 'w' then
    count, length = asks + tonumber(take()), tonumber(take())
  end
  local is_whole = false
  for _ = 1, asks do
    is_whole = wholes[request().cell] or is_whole
  end
  local stop = at + length
  while at < stop do
    local _, is_one = pass()
    is_whole = is_one or is_whole
  end
  return count, is_whole
end

local RUNS = { q = true, Q = true }

-- 'b' how many units: they are of one client, who must not see a later one done without an earlier one. Runs of additions come last.
local function units(replies)
  local together, is_waiting, length = 0, false, #arguments
  while at < length and not RUNS[arguments[at + 1]] do
    if arguments[at + 1] == 'b' then
      at = at + 1
      together = tonumber(take())
    end
    if has_wholes then
      local begin = at
      local count, is_whole = pass()
      is_waiting = is_waiting or is_whole
      if is_waiting then
        for _ = 1, count do
          replies[#replies + 1] = '#'
        end
      else
        at = begin
      end
    end
    if not is_waiting then
      unit(replies)
    end
    together = math.max(together - 1, 0)
    is_waiting = is_waiting and together > 0
  end
  while at < length do
    run_of_additions(replies)
  end
end

-- When an id was used: what a run has noted says when the counter was changed, which is the same.
local function used_at(record)
  local second, changed = record:match('^%S+ (%S+) %S+ %S+ (%S+)')
  return tonumber(second:byte(1) == 43 and changed or second)
end

local function read(count, window)
  texts, cells, remembered, wholes, has_wholes = {}, {}, {}, {}, false
  if #keys < 3 then
    return
  end
  local found = redis.call('MGET', unpack(keys, 3))
  for place = 1, count do
    texts[place + 2] = found[place] or nil
  end
  for index = 3, first_text - 1 do
    open(index)
    has_wholes = has_wholes or wholes[index] ~= nil
  end
  for place = count + 1, #keys - 2 do
    local record = found[place]
    if record and math.max(tonumber(now) - used_at(record), 0) < window then
      remembered[place + 2] = record
    end
  end
end

-- The stream comes first: it is what could be of another type, and then nothing is written. Ids come before what was done under them:
-- whatever fails in between, nothing is counted twice.
local function write(window)
  if #events > 0 then
    redis.call('XADD', keys[2], '*', unpack(events))
    has_written = true
  end
  local lifetime = string.format('%.0f', window + GRACE_MS)
  for _, id in ipairs(dirty_ids) do
    if remembered[id] then
      redis.call('SET', keys[id], remembered[id], 'PX', lifetime)
    else
      redis.call('DEL', keys[id])
    end
    has_written = true
  end
  local plain = {}
  for index in pairs(dirty) do
    local text, cell, key = texts[index], cells[index], keys[index]
    if text then
      plain[#plain + 1] = key
      plain[#plain + 1] = text
    elseif not cell then
      redis.call('DEL', key)
    else
      text = cell.value .. ' ' .. cell.version .. ' ' .. cell.updated .. ' ' .. cell.birth .. ' ' .. cell.expires
      local expires = cell.expires ~= NEVER and tonumber(cell.expires) or EXPIRY_MAX
      if expires < EXPIRY_MAX then
        redis.call('SET', key, text, 'PXAT', string.format('%.0f', expires + GRACE_MS))
      else
        plain[#plain + 1] = key
        plain[#plain + 1] = text
      end
    end
  end
  if #plain > 0 then
    redis.call('MSET', unpack(plain))
  end
end

local function run(call_keys, call_arguments)
  keys, arguments, at = call_keys, call_arguments, 0
  local epoch = take()
  local marker = redis.call('HMGET', keys[1], 'epoch', 'births')
  if marker[1] ~= epoch then
    return { 'lost', marker[1] or '' }
  end
  now = take()
  local window, count = tonumber(take()), tonumber(take())
  first_text = tonumber(take()) + 3
  local limits_count = tonumber(take())
  births = tonumber(marker[2] or '0')
  local births_before = births
  events, dirty, dirty_ids, fresh_ids, limits_of = {}, {}, {}, {}, {}
  if limits_count > 0 then
    local limits = {}
    for index = 1, limits_count do
      limits[index] = { floor = take(), ceiling = take(), saturate = take() == '1', born = take(), disabled = take() == '1' }
    end
    for index = 3, count + 2 do
      limits_of[index] = limits[tonumber(take())]
    end
  end
  read(count, window)
  local replies = { 'ok' }
  units(replies)
  write(window)
  if births ~= births_before then
    redis.call('HSET', keys[1], 'births', string.format('%.0f', births))
  end
  return replies
end

-- Says of an error whether anything was written before it.
local function telling(callback)
  return function(call_keys, call_arguments)
    has_written = false
    local is_done, answer = pcall(callback, call_keys, call_arguments)
    if is_done then
      return answer
    end
    local text = type(answer) == 'table' and answer.err or 'ERR ' .. tostring(answer)
    return redis.error_reply(has_written and 'HALFDONE ' .. text or text)
  end
end

-- ARGV  commands: how many words each has, and those. Answers the places of those that the user may not run.
local function rights(_, asked)
  local missing, place, word = {}, 0, 1
  while word <= #asked do
    local count = tonumber(asked[word])
    place = place + 1
    if not redis.acl_check_cmd(unpack(asked, word + 1, word + count)) then
      missing[#missing + 1] = place
    end
    word = word + count + 1
  end
  return missing
end

redis.register_function { function_name = 'quipu_5_rights', callback = rights, flags = { 'no-writes' } }
redis.register_function('quipu_5', telling(run))
-- For what only looks or deletes: a Redis without memory lets it through.
redis.register_function { function_name = 'quipu_5_spare', callback = telling(run), flags = { 'allow-oom' } }
