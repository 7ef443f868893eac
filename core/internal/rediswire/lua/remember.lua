-- Statements that note the last token that was given out under an owner (release, leave). Others may
-- have got tokens since, so the fence is never lowered. fence, token and keep are as in the
-- arguments of these scripts.

local last = redis.pcall('SET', fence, token, 'PX', keep, 'GET')
if type(last) == 'string' and (#last > #token or #last == #token and last > token) then -- as numbers
	redis.pcall('SET', fence, last, 'PX', keep)
end
