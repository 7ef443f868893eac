-- Makes a payment under a reference, once: a payment that was made is returned to each
-- caller, and nothing is written.
-- KEYS: the account, the payment of the reference. ARGV: a fencing token, the
-- new balance, the payment's id (empty: it is only looked for), its amount, and for how
-- many ms the reference is remembered.
-- Returns {'ok', id, balance}, {'new'}, {'reused'} or {'stale', last token, 0 if it is gone}.
local made = redis.call('HMGET', KEYS[2], 'id', 'account', 'amount', 'balance')
if made[1] then
  if made[2] ~= KEYS[1] or made[3] ~= ARGV[4] then
    return {'reused'}
  end
  return {'ok', made[1], made[4]}
end
if ARGV[3] == '' then
  return {'new'}
end
-- The fence of a value that was claimed by redisfence.
local fence = redis.call('HGET', KEYS[1], 'fence')
if fence ~= ARGV[1] then
  return {'stale', fence or '0'}
end
redis.call('HSET', KEYS[2], 'id', ARGV[3], 'account', KEYS[1], 'amount', ARGV[4], 'balance', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('HSET', KEYS[1], 'balance', ARGV[2])
return {'ok', ARGV[3], ARGV[2]}
