-- Changes the mark of a node of a quorum, unless the mark has been changed or lost meanwhile.
-- It shows that the node has kept its votes.
--
-- KEYS[1] mark    string
-- ARGV[1] the mark as it was seen; empty if there was none
-- ARGV[2] the new mark
--
-- Returns 1, or 0 if the mark is another one.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
