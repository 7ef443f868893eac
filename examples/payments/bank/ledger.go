package bank

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// ledger keeps the accounts in Redis: a hash each, with its balance and the
// largest fencing token that has claimed it.
//
// It offers no way to change a balance in place. What it does guarantee is that
// whoever holds an outdated token writes nothing, and for that the claim comes
// with the read: if tokens were compared by the write alone, a holder that was
// paused could still write after its successor has read and before that one
// writes, and its update would be overwritten.
type ledger struct {
	rdb redis.UniversalClient
}

// writeTimeout bounds a write. It only matters when Redis does not answer: the
// client's own timeouts come first.
const writeTimeout = 10 * time.Second

//go:embed *.lua
var sources embed.FS

var (
	claimScript = load("claim.lua")
	writeScript = load("write.lua")
	putScript   = load("put.lua")
	payScript   = load("pay.lua")
)

// script is a redis.Script together with its text, which that keeps to itself.
type script struct {
	*redis.Script
	source string
}

func load(file string) script {
	source, err := sources.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return script{redis.NewScript(string(source)), string(source)}
}

// accountKey names an account in Redis. The fixed hash tag puts all accounts
// into one slot of a Cluster, so that one script can write both sides of a
// transfer. A bank too large for one shard would need a record of the transfer
// that survives between the two writes; the lock would stay the same.
//
// The prefix is not the locks', whose keys begin with "interlock:".
func accountKey(id string) string { return "payments:{ledger}:account:" + id }

// entry is an account as a holder of its lock sees it.
type entry struct {
	id      string
	token   int64
	balance int64
}

// read returns a balance and claims nothing.
func (l *ledger) read(ctx context.Context, id string) (int64, error) {
	balance, err := l.rdb.HGet(ctx, accountKey(id), "balance").Int64()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, fmt.Errorf("%w: %s", ErrUnknownAccount, id)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return balance, nil
}

// claim fills in the balances and claims the accounts, all or none.
func (l *ledger) claim(ctx context.Context, entries []entry) error {
	keys, args := make([]string, len(entries)), make([]any, len(entries))
	for i, e := range entries {
		keys[i], args[i] = accountKey(e.id), e.token
	}
	// To claim twice for one token changes nothing: retries are welcome.
	reply, err := claimScript.Run(ctx, l.rdb, keys, args...).StringSlice()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := refusal(reply, entries); err != nil {
		return err
	}
	for i := range entries {
		if entries[i].balance, err = strconv.ParseInt(reply[i+1], 10, 64); err != nil {
			return fmt.Errorf("balance of %s: %w", entries[i].id, err)
		}
	}
	return nil
}

// write stores the balances of claimed accounts, all or none.
func (l *ledger) write(ctx context.Context, entries []entry) error {
	keys, args := make([]string, 0, len(entries)), make([]any, 0, 2*len(entries))
	for _, e := range entries {
		keys, args = append(keys, accountKey(e.id)), append(args, e.token, e.balance)
	}
	reply, err := l.once(ctx, writeScript, keys, args...)
	if err != nil {
		return err
	}
	return refusal(reply, entries)
}

// put creates or overwrites an account.
func (l *ledger) put(ctx context.Context, e entry) error {
	reply, err := l.once(ctx, putScript, []string{accountKey(e.id)}, e.token, e.balance)
	if err != nil {
		return err
	}
	return refusal(reply, []entry{e})
}

// overwrite stores a balance and asks nobody.
func (l *ledger) overwrite(ctx context.Context, id string, balance int64) error {
	if err := l.rdb.HSet(ctx, accountKey(id), "balance", balance).Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

// once runs a script that writes. If its reply is lost it is not sent again: by
// then another token may have claimed the account, and the second try would
// report as refused what the first one has done.
//
// Neither does it stop when ctx ends, for then nobody knew what was done. It is
// the fence that keeps a late write out.
func (l *ledger) once(ctx context.Context, s script, keys []string, args ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()

	reply, err := l.send(ctx, keys, args, "evalsha", s.Hash())
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = l.send(ctx, keys, args, "eval", s.source)
	}
	switch e := redis.Error(nil); {
	case errors.As(err, &e): // Redis has answered, and refused to run the script
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return reply, nil
}

func (l *ledger) send(ctx context.Context, keys []string, args []any, command ...any) ([]string, error) {
	command = append(command, len(keys))
	for _, k := range keys {
		command = append(command, k)
	}
	cmd := unrepeated{redis.NewCmd(ctx, append(command, args...)...)}
	if err := l.rdb.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.StringSlice()
}

// unrepeated is a command that go-redis does not retry by itself.
type unrepeated struct{ *redis.Cmd }

func (unrepeated) NoRetry() bool { return true }

// refusal turns a script's reply into its error.
func refusal(reply []string, entries []entry) error {
	if len(reply) == 0 {
		return fmt.Errorf("%w: empty reply", ErrUnavailable)
	}
	switch reply[0] {
	case "unknown":
		place, err := strconv.Atoi(reply[1])
		if err != nil || place < 1 || place > len(entries) {
			return ErrUnknownAccount
		}
		return fmt.Errorf("%w: %s", ErrUnknownAccount, entries[place-1].id)
	case "stale":
		return fmt.Errorf("%w: the last token is %s", ErrStaleToken, reply[1])
	}
	return nil
}
