-- The end of the scripts that take several requests in one call: acquire, renew and
-- release, enter, stay and leave. What stands before it has set
--
-- name    of the script
-- count   of the requests
-- one     function that carries out the request of a number
--
-- Returns the replies, or the texts of errors, in a list behind the name: inside of a
-- list go-redis would take an error for the end of it.

local replies = {name}
for i = 1, count do
	local ok, reply = pcall(one, i)
	if not ok then
		reply = reply.err or reply -- of this lock alone
		if string.find(reply, '^READONLY') then
			return {err = reply} -- of the server: go-redis has to see it, and connects anew
		end
	end
	replies[i + 1] = reply
end
return replies
