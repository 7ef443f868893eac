//go:build long

package histories

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/trust/internal/history"
)

// writing is how a holder writes to the register that is meant to know tokens.
type writing int

const (
	claiming  writing = iota // the token is claimed before the value is read
	lateCheck                // it is shown only when writing
	unchecked                // it is not shown at all
)

// The register is a hash of the greatest token and the value.
const (
	// claimScript takes note of a token and returns the value, or false if it has
	// seen a greater one. KEYS[1] register, ARGV[1] token.
	claimScript = `
local r = redis.call('HMGET', KEYS[1], 'fence', 'value')
if tonumber(ARGV[1]) < tonumber(r[1] or '0') then return false end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return r[2] or '0'`
	// writeScript writes if the token is the last that was claimed.
	// KEYS[1] register, ARGV[1] token, ARGV[2] value.
	writeScript = `
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'value', ARGV[2])
return 1`
	// lateScript writes if no greater token was shown. As before.
	lateScript = `
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1`
)

func fencedKey(lock string) string { return "fenced/" + lock }
func plainKey(lock string) string  { return "plain/" + lock }

// openRegisters connects to the server of the registers. Nothing is sent twice,
// so that an outcome which is not known is recorded as such.
func (w *worker) openRegisters(ctx context.Context) (err error) {
	w.registers = redis.NewClient(&redis.Options{
		Addr: w.Registers, MaxRetries: -1,
		Dialer: w.replies.dial(func(addr string) string { return addr }),
	})
	var errs [3]error
	w.claim, errs[0] = w.registers.ScriptLoad(ctx, claimScript).Result()
	w.write, errs[1] = w.registers.ScriptLoad(ctx, writeScript).Result()
	w.late, errs[2] = w.registers.ScriptLoad(ctx, lateScript).Result()
	return errors.Join(errs[:]...)
}

// read reads both registers of a lock, and says whether the holder may write.
func (w *worker) read(
	ctx context.Context, s *subject, lock string, about history.Record,
) (fenced, plain uint64, ok bool) {
	claim, read := about, about
	claim.Kind, read.Kind = history.Claim, history.Read
	c, r := w.log.Begin(claim), w.log.Begin(read)
	ctx = context.WithoutCancel(ctx)
	pipe := w.registers.Pipeline()
	var first *redis.Cmd
	if s.write == claiming {
		first = pipe.EvalSha(ctx, w.claim, []string{fencedKey(lock)}, about.Token)
	} else {
		first = pipe.Do(ctx, "hget", fencedKey(lock), "value")
	}
	second := pipe.Get(ctx, plainKey(lock))
	_, _ = pipe.Exec(ctx) // each command has its own error
	plain, plainErr := number(second.Result())
	r.Value = plain
	r.End(outcome(plainErr, true))
	text, err := first.Text()
	if errors.Is(err, redis.Nil) && s.write == claiming {
		c.End(history.Refused)
		return 0, 0, true // it is too late to hold; both writes are tried nevertheless
	}
	fenced, err = number(text, err)
	c.Value = fenced
	c.End(outcome(err, true))
	return fenced, plain, err == nil && plainErr == nil
}

// writeBoth writes to both registers, new values each.
func (w *worker) writeBoth(
	ctx context.Context, s *subject, lock string, about history.Record, fenced, plain uint64,
) {
	one, other := about, about
	one.Kind, one.Before, one.Value = history.FencedWrite, fenced, w.id(&w.values)
	other.Kind, other.Before, other.Value = history.Write, plain, w.id(&w.values)
	f, p := w.log.Begin(one), w.log.Begin(other)
	ctx = context.WithoutCancel(ctx)
	pipe := w.registers.Pipeline()
	var first *redis.Cmd
	switch s.write {
	case claiming:
		first = pipe.EvalSha(ctx, w.write, []string{fencedKey(lock)}, about.Token, one.Value)
	case lateCheck:
		first = pipe.EvalSha(ctx, w.late, []string{fencedKey(lock)}, about.Token, one.Value)
	case unchecked:
		first = pipe.Do(ctx, "hset", fencedKey(lock), "value", one.Value)
	}
	second := pipe.Set(ctx, plainKey(lock), other.Value, 0)
	_, _ = pipe.Exec(ctx) // each command has its own error
	n, err := first.Int()
	// HSET answers 0 when the field was there, and has written all the same.
	f.End(outcome(err, s.write == unchecked || n == 1))
	p.End(outcome(second.Err(), true))
}

// outcome is the meaning of an answer of the registers.
func outcome(err error, done bool) history.Outcome {
	switch {
	case err != nil:
		return history.Unknown
	case !done:
		return history.Refused
	}
	return history.Done
}

// number reads a register's value; none is 0.
func number(text string, err error) (uint64, error) {
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("a register holds %q: %w", text, err)
	}
	return n, nil
}

// lastValues returns the last values of both registers of a lock.
func lastValues(ctx context.Context, rdb *redis.Client, lock string) (fenced, plain uint64, err error) {
	fenced, err = number(rdb.HGet(ctx, fencedKey(lock), "value").Result())
	plain, other := number(rdb.Get(ctx, plainKey(lock)).Result())
	return fenced, plain, errors.Join(err, other)
}
