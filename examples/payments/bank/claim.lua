-- Reads accounts in order to change them, and claims them for the callers'
-- tokens: from now on a smaller token can neither claim nor write.
-- KEYS: the accounts. ARGV: a fencing token for each.
-- Returns {'ok', balance, ...}, {'unknown', place} or {'stale', last token}.
local reply = {'ok'}
for i, key in ipairs(KEYS) do
  local account = redis.call('HMGET', key, 'balance', 'token')
  if not account[1] then
    return {'unknown', tostring(i)}
  end
  -- Tokens are microseconds since 1970: exact as Lua's doubles until 2255.
  if tonumber(ARGV[i]) < tonumber(account[2] or 0) then
    return {'stale', account[2]}
  end
  reply[i + 1] = account[1]
end
-- Only when all of them can be claimed is any.
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, 'token', ARGV[i])
end
return reply
