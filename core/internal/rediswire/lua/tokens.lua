-- Makes fencing tokens (acquire and enter), and reads the server's clock (stay and leave).

local call, pcall_, format, floor = redis.call, redis.pcall, string.format, math.floor
local time, stamp -- the server's, in µs

-- clock returns the server's time in ms, rounded down.
local function clock()
	-- include clock.lua
	return floor(time / 1000)
end

-- mint makes tokens, and returns the first as number and as text.
local function mint(fence, keep, tokens)
	-- include mint.lua
	return token, text
end
