-- The end of the scripts that take several requests in one call: acquire, renew and
-- release, enter, stay and leave. The code before it has set
--
-- name    of the script
-- count   of the requests
-- all     function that carries out the requests from a number on, and appends each reply
--         to the replies before it
--
-- Returns the replies, or the texts of errors, in a list after the name: inside of a
-- list go-redis would take an error for the end of it.

local replies = {name}
repeat
	local ok, reply = pcall(all, replies, #replies)
	if not ok then
		reply = reply.err or reply -- of this lock alone
		if string.find(reply, '^READONLY') then
			return {err = reply} -- of the server: go-redis has to see it, and connects anew
		end
		replies[#replies + 1] = reply
	end
until ok or #replies > count
return replies
