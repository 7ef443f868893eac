-- Writes balances, all or none, if every account is still claimed for the
-- token that read it.
-- KEYS: the accounts. ARGV: a fencing token and a balance for each.
-- Returns {'ok'}, {'unknown', place} or {'stale', last token}.
for i, key in ipairs(KEYS) do
  local token = redis.call('HGET', key, 'token')
  if not token then
    return {'unknown', tostring(i)}
  end
  -- Equal, not just "not smaller": after the data was lost and loaded again
  -- the claim is gone, and with it what the caller has read.
  if token ~= ARGV[2 * i - 1] then
    return {'stale', token}
  end
end
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, 'balance', ARGV[2 * i])
end
return {'ok'}
