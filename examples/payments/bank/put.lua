-- Creates or overwrites an account, unless a larger token has claimed it.
-- KEYS: the account. ARGV: a fencing token, the balance.
-- Returns {'ok'} or {'stale', last token}.
local token = redis.call('HGET', KEYS[1], 'token')
if token and tonumber(ARGV[1]) < tonumber(token) then
  return {'stale', token}
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'balance', ARGV[2])
return {'ok'}
