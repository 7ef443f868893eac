//go:build integration

package rediswire

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// library is the sources of the scripts under test, by name.
type library map[string]string

func theLibrary() library {
	return library{
		"acquire": acquireScript.source, "line": lineScript.source, "renew": renewScript.source, "release": releaseScript.source,
		"decline": declineScript.source,
		"enter":   enterScript.source, "stay": stayScript.source, "leave": leaveScript.source,
	}
}

// look tells what is there right after a call. Messages are kept in a list in place of
// the channel: the scripts call the command that they are given.
var look = redis.NewScript(`
local m = redis.call('LPOP', KEYS[1] .. ':free')
local q = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HGET', KEYS[1], 'q')
local lock, fence = redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])
local token = tonumber(redis.call('GET', KEYS[2]) or 0)
local t = redis.call('TIME') -- last: all of it is from before
return {t[1] * 1000000 + t[2], m or '', q or '', lock, fence, token}`)

// explore makes so many calls in worlds of 500 calls, many at a time, and returns the
// first violation of a promise.
func explore(ctx context.Context, rdb *redis.Client, scripts library, calls int, seed uint64) error {
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
	for round, made := 0, uint64(0); calls > 0; round++ {
		type step struct {
			*world
			l     *locker
			c     asked
			reply *redis.Cmd
			seen  *redis.Cmd
		}
		steps := make([]step, len(worlds))
		pipe := cn.Pipeline()
		begin := pipe.Time(ctx)
		for i := range worlds {
			if (round+i*lives/len(worlds))%lives == 0 || worlds[i] == nil {
				made++
				worlds[i] = newWorld(fmt.Sprintf("{%d/%d}", seed, made), seed+made)
			}
			s := step{world: worlds[i]}
			s.l, s.c = s.next()
			keys, args := s.c.arguments(s.key)
			s.reply = pipe.EvalSha(ctx, shas[s.c.script], keys, args...)
			s.seen = pipe.EvalSha(ctx, look.Hash(), []string{s.key, s.key + ":fence"})
			steps[i] = s
		}
		calls -= len(steps)
		_, _ = pipe.Exec(ctx) // each has its own error
		a := begin.Val().UnixMicro()
		for _, s := range steps {
			there, err := s.seen.Slice()
			if err == nil {
				err = s.reply.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %+v: %w", s.key, s.c, err)
			}
			b := there[0].(int64)
			found := seen{
				message: there[1].(string), q: there[2].(string),
				lockMS: there[3].(int64), fenceMS: there[4].(int64), fence: there[5].(int64), exists: there[3].(int64) != -2,
			}
			if err := s.answered(s.l, s.c, s.reply.Val(), a, b, found); err != nil {
				return err
			}
			a = b
		}
	}
	return nil
}
