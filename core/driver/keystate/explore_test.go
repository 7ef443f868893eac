//go:build integration

package keystate

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// look returns the contents right after a call. Messages are kept in a list in place of
// the channel: the test passes another command to the scripts. Each locker of the list that was sent
// must have been called once, unless it was offered the lock, and no other.
var look = redis.NewScript(`
local o, to, calls, all, head = '', nil, {}, {}, ''
for i = 3, #KEYS do
	local id = string.match(KEYS[i], '[^:]*$')
	for _, message in ipairs(redis.call('LRANGE', KEYS[i], 0, -1)) do
		local list = string.match(message, '^:([^ ]*) ')
		if not list then
			o, to = id .. string.match(message, '^[^ ]*'), id
		else
			local partial, rest = string.match(list, '^(%*%d+,)(.*)$')
			head, calls[id] = partial or '', (calls[id] or 0) + 1
			local n = 0
			for entry in string.gmatch(rest or list, '[^,]+') do -- its own entry, and others without their ids
				n = n + 1
				local whose = string.match(entry, '^[+-]?([^~]*)')
				if whose == id then
					all[n] = entry
				elseif whose ~= '.' then
					all[n] = 'the id of another: ' .. entry
				else
					all[n] = all[n] or entry
				end
			end
		end
	end
	redis.call('DEL', KEYS[i])
end
if to and all[1] then
	all[1] = string.gsub(all[1], '^%.', to) -- it was offered the lock
end
local m = head .. table.concat(all, ',')
for id in string.gmatch(table.concat(all, ','), '[+-]?([^,~]+)[^,]*') do
	if (calls[id] or 0) ~= (id == to and 0 or 1) then
		m = m .. ', and ' .. id .. ' is called ' .. (calls[id] or 0) .. ' times'
	end
	calls[id] = nil
end
if next(calls) then
	m = m .. ', and others are called'
end
local has = redis.call('HMGET', KEYS[1], 'q', 'r')
local lock, fence = redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])
local token = tonumber(redis.call('GET', KEYS[2]) or 0)
local t = redis.call('TIME') -- last: all of it is from before
return {t[1] * 1000000 + t[2], m, has[1] or '', lock, fence, token, o, has[2] or ''}`)

// stall is the longest time between two instants of the server for which a world goes on: a record is
// tried at a few instants between them.
const stall = 4 * time.Millisecond

// explore makes so many calls in worlds of 500 calls, many at a time, and returns the first
// difference. A world that a busy machine holds up for too long begins anew.
func explore(ctx context.Context, rdb *redis.Client, scripts map[string]string, calls int, seed uint64) error {
	shas := map[string]string{}
	for name, source := range scripts {
		sha, err := rdb.ScriptLoad(ctx, source).Result()
		if err != nil {
			return fmt.Errorf("%s does not compile: %w", name, err)
		}
		shas[name] = sha
	}
	if err := look.Load(ctx, rdb).Err(); err != nil {
		return err
	}
	cn := rdb.Conn()
	defer cn.Close()
	const lives, beside = 500, 64
	worlds := make([]*world, min(beside, 1+calls/lives))
	made := uint64(0)
	begin := func(i int) {
		made++
		worlds[i] = newWorld(fmt.Sprintf("{%d/%d}", seed, made), seed+made)
	}
	for round := 0; calls > 0; round++ {
		type step struct {
			*world
			l     *member
			c     asked
			reply *redis.Cmd
			seen  *redis.Cmd
		}
		steps := make([]step, len(worlds))
		pipe := cn.Pipeline()
		began := pipe.Time(ctx)
		for i := range worlds {
			if (round+i*lives/len(worlds))%lives == 0 || worlds[i] == nil {
				begin(i)
			}
			s := step{world: worlds[i]}
			s.l, s.c = s.next()
			keys, args := s.c.arguments(s.key)
			s.reply = pipe.EvalSha(ctx, shas[s.c.script], keys, args...)
			looks := []string{s.key, s.key + ":fence"}
			for _, m := range s.members {
				looks = append(looks, "wanted:"+m.id)
			}
			s.seen = pipe.EvalSha(ctx, look.Hash(), looks)
			steps[i] = s
		}
		_, _ = pipe.Exec(ctx) // each has its own error
		a := began.Val()
		for i, s := range steps {
			there, err := s.seen.Slice()
			if err == nil {
				err = s.reply.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %+v: %w", s.key, s.c, err)
			}
			b := time.UnixMicro(there[0].(int64))
			found := seen{
				message: there[1].(string), q: there[2].(string),
				lockMS: there[3].(int64), fenceMS: there[4].(int64), fence: there[5].(int64), exists: there[3].(int64) != -2,
				offer: there[6].(string), kept: there[7].(string) != "",
			}
			switch {
			case found.exists && found.lockMS == -1, found.fenceMS == -1:
				return fmt.Errorf("%s: %+v: a key has no expiry", s.key, s.c)
			case found.fence < s.last && found.fenceMS != -2:
				return fmt.Errorf("%s: %+v: the fence is %d, below the token %d", s.key, s.c, found.fence, s.last)
			case b.Sub(a) > stall:
				begin(i)
			default:
				if err := s.answered(s.l, s.c, s.reply.Val(), a, b, found); err != nil {
					return err
				}
				calls--
			}
			a = b
		}
	}
	return nil
}
