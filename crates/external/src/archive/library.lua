#!lua name=quipu_archive_2
-- What the archive does in Redis beyond reading: it counts what streams have had, and brings back what a group has lost.
--
-- Every call that brings something back names the attempt that it belongs to, and the group's marker has to name it too: who was
-- given up for dead and goes on writing changes nothing.

-- KEYS the stream.  ARGV the first entry that is not in the tables.
-- Answers how many entries there ever were before that one, the last entry that ever was, and how many are left. What is in the tables goes; so all that
-- is left comes after it, and the number is always the same for the same place: one that is smaller or larger means that Redis or the
-- tables have lost something.
local function count(keys, arguments)
  redis.call('XTRIM', keys[1], 'MINID', arguments[1])
  local info = redis.pcall('XINFO', 'STREAM', keys[1])
  if info.err then
    if info.err:find('no such key', 1, true) then
      return { 0, '0-0', 0 }
    end
    return info
  end
  local of = {}
  for index = 1, #info, 2 do
    of[info[index]] = info[index + 1]
  end
  return { of['entries-added'] - of['length'], of['last-generated-id'], of['length'] }
end

-- KEYS the marker.  ARGV the epoch that it names.
-- The group has come back older than it was: from now on nobody counts here until it is rebuilt.
local function doubt(keys, arguments)
  if redis.call('HGET', keys[1], 'epoch') ~= arguments[1] then
    return 0
  end
  redis.call('HDEL', keys[1], 'epoch')
  return 1
end

-- KEYS the marker, the producers.  ARGV the attempt, the epoch that was lost.
-- Begins an attempt, unless the group is whole. The marker names no epoch from now on, so nobody counts here.
local function begin(keys, arguments)
  if redis.call('HGET', keys[1], 'epoch') == arguments[2] then
    return 0
  end
  redis.call('DEL', keys[1], keys[2])
  redis.call('HSET', keys[1], 'restoring', arguments[1])
  return 1
end

-- KEYS the marker, then what is brought back.  ARGV the attempt, then for each key: what it holds, and when Redis removes it,
-- or 'n' for never, or 'd' for a key that shall be gone.
local function put(keys, arguments)
  if redis.call('HGET', keys[1], 'restoring') ~= arguments[1] then
    return 0
  end
  for index = 2, #keys do
    local text, removal = arguments[2 * index - 2], arguments[2 * index - 1]
    if removal == 'd' then
      redis.call('UNLINK', keys[index])
    elseif removal == 'n' then
      redis.call('SET', keys[index], text)
    else
      redis.call('SET', keys[index], text, 'PXAT', removal)
    end
  end
  return 1
end

-- KEYS the marker, the producers.  ARGV the attempt, then for each producer its name and its session.
local function producers(keys, arguments)
  if redis.call('HGET', keys[1], 'restoring') ~= arguments[1] then
    return 0
  end
  redis.call('HSET', keys[2], unpack(arguments, 2))
  return 1
end

-- KEYS the marker, the stream.  ARGV the attempt, the new epoch, how many counters were ever born, the last entry of the
-- stream that is flushed, how many there ever were up to it, or '' if nobody knows. New entries come behind it, also if this server's
-- clock is behind.
local function finish(keys, arguments)
  if redis.call('HGET', keys[1], 'restoring') ~= arguments[1] then
    return 0
  end
  redis.call('DEL', keys[2])
  redis.call('XGROUP', 'CREATE', keys[2], 'quipu', '0', 'MKSTREAM')
  if arguments[5] == '' then
    redis.call('XSETID', keys[2], arguments[4])
  else
    redis.call('XSETID', keys[2], arguments[4], 'ENTRIESADDED', arguments[5])
  end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[1], 'epoch', arguments[2], 'births', arguments[3])
  return 1
end

-- KEYS a marker or the hash of policies.  ARGV the epoch that it should name, the one that it gets.
local function advance(keys, arguments)
  local named = redis.call('HGET', keys[1], 'epoch')
  if named == arguments[1] then
    redis.call('HSET', keys[1], 'epoch', arguments[2])
    return 1
  end
  return named == arguments[2] and 1 or 0
end

-- KEYS the hash of policies.  ARGV its epoch, then its fields. Unless it is there already.
local function policies(keys, arguments)
  if redis.call('HGET', keys[1], 'epoch') == arguments[1] then
    return 1
  end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[1], 'epoch', arguments[1], unpack(arguments, 2))
  return 1
end

-- These take no room, and are what makes some where there is none.
redis.register_function({ function_name = 'quipu_archive_2_count', callback = count, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'quipu_archive_2_doubt', callback = doubt, flags = { 'allow-oom' } })
redis.register_function('quipu_archive_2_begin', begin)
redis.register_function('quipu_archive_2_put', put)
redis.register_function('quipu_archive_2_producers', producers)
redis.register_function('quipu_archive_2_finish', finish)
redis.register_function('quipu_archive_2_advance', advance)
redis.register_function('quipu_archive_2_policies', policies)
