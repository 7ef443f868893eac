-- Writes the entry of a locker.
--
-- KEYS[1] entry   hash: host, pid, service, version, started (ms, by the clock of its
--                 process), protocol, and seen: when this was written, in ms of the
--                 server's clock
-- ARGV[1] for how long it stays, in ms
-- ARGV[2] and on: names and values of all fields but seen
--
-- Returns 'announced'.
local t = redis.call('TIME')
local seen = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[1], 'seen', seen, unpack(ARGV, 2))
if type(redis.pcall('PEXPIRE', KEYS[1], ARGV[1])) ~= 'number' then
	redis.call('DEL', KEYS[1]) -- nothing that never ends; the second call says why
	redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 'announced'
