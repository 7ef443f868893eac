-- Makes fencing tokens (acquire and enter), and reads the server's clock (stay and leave).

local call, pcall_, format, floor = redis.call, redis.pcall, string.format, math.floor
local time, stamp -- the server's, in µs

-- clock returns the server's time in ms, rounded down.
local function clock()
	if not time then
		local t = call('TIME')
		time = t[1] * 1000000 + t[2]
		stamp = format('%.0f', time)
	end
	return floor(time / 1000)
end

-- mint makes so many tokens that follow one another, and returns the first as number
-- and as text. It is max(last + 1, the server's time in µs): greater than every token
-- before it, also after the fence was lost, if the clocks agree that far. Numbers are
-- doubles here: µs fit exactly, but print as 1.79e+15 unless formatted.
local function mint(fence, keep, tokens)
	clock()
	local token, text = time, stamp
	local last = call('SET', fence, tokens == 1 and text or format('%.0f', token + tokens - 1), 'PX', keep, 'GET')
	if last and (#last > #text or #last == #text and last >= text) then -- as numbers
		token = (tonumber(last) or token) + 1
		text = format('%.0f', token)
		call('SET', fence, format('%.0f', token + tokens - 1), 'PX', keep)
	end
	return token, text
end
