-- Says something on a channel of one subscriber, which finds out by it whether its
-- connection leads to the server that carries out requests.
--
-- KEYS[1] channel
--
-- Returns how many connections of the server listen.
return redis.call('PUBLISH', KEYS[1], '')
