// Package redisfence keeps values in Redis that refuse the writes of an outdated holder of a lock;
// package fencing says why. A value is a hash. Its field [Field] is the greatest token
// that has claimed the value. Claim a value when you read it in order to change it. A write
// succeeds only for the token that claimed the value:
//
//	values := redisfence.New(rdb)
//	hold := redisfence.Hold{Key: "account:42", Token: lease.Token()}
//	read, err := values.Claim(ctx, hold)
//	if err != nil {
//		return err
//	}
//	err = values.Write(ctx, redisfence.Change{Hold: hold, Set: map[string]string{"balance": debited(read[0])}})
//
// A program that changes or deletes such a hash in another way goes around the
// fence. Values that change together must be in one slot of a Cluster: give their
// keys a common hash tag, as in "bank:{42}:balance".
package redisfence

import (
	"context"
	"crypto/fips140"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
)

const (
	// Field is the field of the fence. A script of your own that writes under a
	// claim must find the caller's token in it, unchanged.
	Field = "fence"

	// writeTimeout bounds a write. It only matters when Redis does not answer:
	// the client's own timeouts come first.
	writeTimeout = 10 * time.Second

	// absent is for how long a value that does not exist stays claimed. Nothing is
	// lost when such a claim ends: a later write under it is refused, and the next
	// claim finds as little as this one did.
	absent = 10 * time.Minute
)

// ErrOutcomeUnknown says that Redis did not answer a write, which may have
// happened.
var ErrOutcomeUnknown = errors.New("interlock: no answer to a fenced write, it may have happened")

//go:embed claim.lua
var claimSource string

//go:embed write.lua
var writeSource string

var (
	claimScript = newScript(claimSource)
	writeScript = newScript(writeSource)
)

// newScript makes a script. Redis names it by its SHA-1, which protects nothing.
func newScript(source string) (s *redis.Script) {
	fips140.WithoutEnforcement(func() { s = redis.NewScript(source) })
	return s
}

// Hold is a value and the fencing token of its lock ([core.Lease.Token]). The caller
// holds the lock.
type Hold struct {
	Key   string // the value's in Redis
	Token int64
}

// Change is a value and the fields to write to it.
type Change struct {
	Hold
	// Set has the fields to write; all other fields stay. It must not contain
	// [Field].
	Set map[string]string
}

// Values reads and writes fenced values. [New] makes it. It is safe for concurrent
// use.
type Values struct{ rdb redis.UniversalClient }

// New returns the values in rdb, which may be any client except a [redis.Ring].
func New(rdb redis.UniversalClient) *Values { return &Values{rdb} }

// Claim claims values and reads them, all or none, in one round trip. The maps are
// in the order of holds and do not contain [Field]. A value that does not exist is
// empty, and is claimed for ten minutes: a [Values.Write] creates it.
//
// Its error matches [fencing.ErrStale] if a larger token has claimed a value (the same
// token may claim again), [core.ErrConfig] for a token below 1, the cause of ctx if ctx
// has ended, and [core.ErrUnavailable] if Redis did not answer or refused.
func (v *Values) Claim(ctx context.Context, holds ...Hold) ([]map[string]string, error) {
	keys, args := make([]string, len(holds)), make([]any, 1, len(holds)+1)
	args[0] = absent.Milliseconds()
	for i, h := range holds {
		if err := fencing.CheckToken(h.Key, h.Token); err != nil {
			return nil, err
		}
		keys[i], args = h.Key, append(args, h.Token)
	}
	// Claiming twice for one token changes nothing: retries are welcome.
	reply, err := claimScript.Run(ctx, v.rdb, keys, args...).Slice()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	if err := refusal(reply, 1+len(holds), holds); err != nil {
		return nil, err
	}
	values := make([]map[string]string, len(holds))
	for i := range holds {
		values[i] = map[string]string{}
		fields, _ := reply[i+1].([]any)
		for j := 0; j+1 < len(fields); j += 2 {
			if name := fmt.Sprint(fields[j]); name != Field {
				values[i][name] = fmt.Sprint(fields[j+1])
			}
		}
	}
	return values, nil
}

// Write writes values that were claimed for the same tokens, all or none. It goes
// on when ctx ends, because otherwise the caller would not know the outcome; the fence
// keeps a late write out. It waits for Redis for at most ten seconds.
//
// Its error matches [fencing.ErrStale] if a value is not claimed for its token any
// more, [core.ErrConfig] for a token below 1 or a change of [Field], and
// [core.ErrUnavailable] if Redis refused. In these cases nothing was written. It
// matches [ErrOutcomeUnknown] if Redis did not answer.
func (v *Values) Write(ctx context.Context, changes ...Change) error {
	return v.write(ctx, "claimed", changes)
}

// Set claims values and writes them without reading them: for a change that replaces a
// value without regard to its contents. Otherwise it works as [Values.Write].
func (v *Values) Set(ctx context.Context, changes ...Change) error {
	return v.write(ctx, "any", changes)
}

func (v *Values) write(ctx context.Context, which string, changes []Change) error {
	holds, args := make([]Hold, len(changes)), []any{which}
	for i, c := range changes {
		if err := fencing.CheckToken(c.Key, c.Token); err != nil {
			return err
		}
		if _, ok := c.Set[Field]; ok {
			return fmt.Errorf("%w: field %q of %q is the fence's", core.ErrConfig, Field, c.Key)
		}
		holds[i], args = c.Hold, append(args, c.Token, len(c.Set))
		for name, value := range c.Set {
			args = append(args, name, value)
		}
	}
	reply, err := v.once(ctx, holds, args)
	if err != nil {
		return err
	}
	return refusal(reply, 1, holds)
}

// once runs the script that writes. If its reply is lost it is not sent again: by
// then another token may have claimed the value, and the second try would report a
// refusal although the first has written.
func (v *Values) once(ctx context.Context, holds []Hold, args []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()

	reply, err := v.send(ctx, "evalsha", writeScript.Hash(), holds, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = v.send(ctx, "eval", writeSource, holds, args)
	}
	switch e := redis.Error(nil); {
	case errors.As(err, &e): // Redis has answered, and refused to run the script
		return nil, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return reply, nil
}

func (v *Values) send(ctx context.Context, command, script string, holds []Hold, args []any) ([]any, error) {
	words := []any{command, script, len(holds)}
	for _, h := range holds {
		words = append(words, h.Key)
	}
	cmd := unrepeated{redis.NewCmd(ctx, append(words, args...)...)}
	if err := v.rdb.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// unrepeated is a command that go-redis does not retry by itself.
type unrepeated struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (unrepeated) NoRetry() bool { return true }

// refusal turns a script's reply into its error; want is the length of a good one.
func refusal(reply []any, want int, holds []Hold) error {
	if len(reply) == want && reply[0] == "ok" {
		return nil
	}
	if len(reply) == 3 && reply[0] == "stale" {
		place, _ := reply[1].(int64)
		latest, err := strconv.ParseInt(fmt.Sprint(reply[2]), 10, 64)
		if err == nil && 1 <= place && int(place) <= len(holds) {
			h := holds[place-1]
			return &fencing.StaleError{Key: h.Key, Token: h.Token, Latest: latest}
		}
	}
	return fmt.Errorf("%w: unexpected reply %v", core.ErrUnavailable, reply)
}
