-- The function that several.lua calls, for scripts that have a function one, which carries out
-- the request of a number and returns its reply.

local function all(replies, from)
	for i = from, count do
		replies[i + 1] = one(i) or false
	end
end
