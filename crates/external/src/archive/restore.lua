#!lua name=quipu_restore_1
-- Brings back what a group has lost. Every call names the attempt that it belongs to, and the group's marker has to name it
-- too: who was given up for dead and goes on writing changes nothing.

-- KEYS the marker.  ARGV the attempt, the epoch that was lost.
-- Begins an attempt, unless the group is whole. The marker names no epoch from now on, so nobody counts here.
local function begin(keys, arguments)
  if redis.call('HGET', keys[1], 'epoch') == arguments[2] then
    return 0
  end
  redis.call('DEL', keys[1])
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

-- KEYS the marker, the stream.  ARGV the attempt, the new epoch, how many counters were ever born, the last entry of the
-- stream that is flushed. New entries come behind it, also if this server's clock is behind.
local function finish(keys, arguments)
  if redis.call('HGET', keys[1], 'restoring') ~= arguments[1] then
    return 0
  end
  pcall(redis.call, 'XGROUP', 'CREATE', keys[2], 'quipu', '0', 'MKSTREAM')
  pcall(redis.call, 'XSETID', keys[2], arguments[4])
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

redis.register_function('quipu_restore_begin', begin)
redis.register_function('quipu_restore_put', put)
redis.register_function('quipu_restore_finish', finish)
redis.register_function('quipu_restore_advance', advance)
redis.register_function('quipu_restore_policies', policies)
