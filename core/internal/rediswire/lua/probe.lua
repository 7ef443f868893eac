-- Runs a command on a key of a probe, on the server of another key.
--
-- KEYS[1] a key that is not touched: proxies route a call by its first key
-- KEYS[2] the probe's key
-- ARGV    a command, and its arguments after the key
--
-- Returns the reply of the command.
return redis.call(ARGV[1], KEYS[2], unpack(ARGV, 2))
