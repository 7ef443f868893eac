package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// The purposes of rights, as in docs/operations.md.
const (
	forLocks   = "locks"
	forPlaces  = "shared locks and permits"
	forRecords = "idempotency records"
	forCheck   = "Store.Check"
	forCluster = "Cluster"
)

// configGet is the right to read one setting, whose value is safe by default.
const configGet = "+config|get"

// need is a command that the store uses, as it uses it. KEY and CHANNEL stand for the
// key and the channel of a lock.
type need struct{ use, rule, command string }

// needs are the rights of docs/operations.md. TestTheRightsAreThoseOfTheDocuments
// compares them; HELLO is always allowed.
var needs = []need{
	{forLocks, "+evalsha", "EVALSHA 0123456789012345678901234567890123456789 1 KEY"},
	{forLocks, "+eval", "EVAL return 1 KEY"},
	{forLocks, "+script|load", "SCRIPT LOAD return"},
	{forLocks, "+exists", "EXISTS KEY"},
	{forLocks, "+time", "TIME"},
	{forLocks, "+set", "SET KEY v"},
	{forLocks, "+hset", "HSET KEY f v"},
	{forLocks, "+pexpire", "PEXPIRE KEY 1"},
	{forLocks, "+hgetall", "HGETALL KEY"},
	{forLocks, "+hmget", "HMGET KEY f"},
	{forLocks, "+pttl", "PTTL KEY"},
	{forLocks, "+del", "DEL KEY"},
	{forLocks, "+publish", "PUBLISH CHANNEL v"},
	{forLocks, "+spublish", "SPUBLISH CHANNEL v"},
	{forLocks, "+subscribe", "SUBSCRIBE CHANNEL"},
	{forLocks, "+unsubscribe", "UNSUBSCRIBE CHANNEL"},
	{forLocks, "+ssubscribe", "SSUBSCRIBE CHANNEL"},
	{forLocks, "+sunsubscribe", "SUNSUBSCRIBE CHANNEL"},
	{forLocks, "+ping", "PING"},
	{forLocks, "+cluster|slots", "CLUSTER SLOTS"},
	{forLocks, "+cluster|shards", "CLUSTER SHARDS"},
	{forLocks, "+readonly", "READONLY"},
	{forRecords, "+hget", "HGET KEY f"},
	{forPlaces, "+hlen", "HLEN KEY"},
	{forPlaces, "+hdel", "HDEL KEY f"},
	{forCheck, "+info", "INFO"},
	{forCheck, configGet, "CONFIG GET save"},
	{forCluster, "+asking", "ASKING"},
	{forCluster, "+command", "COMMAND"},
}

// rights finds which rights a user lacks.
func (f *servers) rights(ctx context.Context, user string, r *Report) error {
	own := user == ""
	if own {
		if name, err := f.rdb.Do(ctx, "ACL", "WHOAMI").Text(); err == nil {
			user = name
		} else if name := f.username(); name != "" {
			user = name
		} else {
			user = "default"
		}
	}
	r.User = user
	key := f.wire.LockName("interlock doctor/" + rand.Text())
	_, clustered := f.rdb.(*redis.ClusterClient)
	cmds := make([]*redis.Cmd, len(needs))
	// All to one server: rights are a server's own, and a Cluster's are alike.
	masters, err := f.wire.Masters(ctx)
	node := slices.IndexFunc(masters, func(node *redis.Client) bool { return !f.away(r, node) })
	if err != nil || node < 0 {
		return rediswire.Wrap(err)
	}
	if !own {
		f.switchedOn(ctx, masters[node], r)
	}
	err = rediswire.Pipelined(ctx, masters[node], func(p redis.Pipeliner) {
		for i, n := range needs {
			args := []any{"ACL", "DRYRUN", user}
			for word := range strings.FieldsSeq(n.command) {
				switch word {
				case "KEY":
					word = key
				case "CHANNEL":
					word = key + ":done"
				}
				args = append(args, word)
			}
			if strings.HasPrefix(n.command, "EVAL ") {
				args = append(args[:4], "return 1", "1", key)
			}
			cmds[i] = p.Do(ctx, args...)
		}
	})
	if err != nil {
		return err
	}
	for i, n := range needs {
		text, err := cmds[i].Text()
		switch {
		case err != nil && n.use == forCheck && strings.Contains(err.Error(), "not found"):
			// The command has another name on this server. Report.Unsafe says that the
			// settings cannot be read.
		case err != nil && own && rediswire.IsReply(err):
			r.Tried, r.Missing = true, nil
			return f.tryRights(ctx, r)
		case err != nil:
			return rediswire.Wrap(err)
		case n.use == forCluster && !clustered:
		case text != "OK":
			r.Missing = append(r.Missing, MissingRight{n.use, n.rule})
		}
	}
	return nil
}

// switchedOn finds out whether a user may log in. ACL DRYRUN answers alike for a user that is switched off.
func (f *servers) switchedOn(ctx context.Context, node *redis.Client, r *Report) {
	reply, err := node.Do(ctx, "ACL", "GETUSER", r.User).Result()
	var flags any
	switch of := reply.(type) {
	case map[any]any:
		flags = of["flags"]
	case []any: // RESP2
		if i := slices.Index(of, any("flags")); i >= 0 && i+1 < len(of) {
			flags = of[i+1]
		}
	}
	switch all, known := flags.([]any); {
	case err != nil && !rediswire.IsReply(err): // the next request fails, too
	case !known:
		r.Notes = append(r.Notes, fmt.Sprintf("it is not known whether the user %s is switched on: this user may not ask (+acl|getuser)", r.User))
	case slices.Contains(all, any("off")):
		r.Missing = append(r.Missing, MissingRight{forLocks, "on"})
	}
}

// username returns the name of the client's login.
func (f *servers) username() string {
	switch c := f.rdb.(type) {
	case *redis.Client:
		return c.Options().Username
	case *redis.ClusterClient:
		return c.Options().Username
	}
	return ""
}

// theRule finds what an error of rediswire says about a missing right.
var theRule = regexp.MustCompile(`the rule is ([+&~]\S+)`)

// tryRights takes a lock, a place and an entry under separate names, and gives them
// back.
func (f *servers) tryRights(ctx context.Context, r *Report) error {
	key, id := "interlock doctor/"+rand.Text(), strings.ToLower(rand.Text())
	ask := driver.AcquireRequest{
		Key: key, TTL: time.Second, Late: func(driver.Reply, error) {}, Deadline: time.Now().Add(5 * time.Second),
	}
	for i, kind := range []driver.Kind{driver.Exclusive, driver.Shared} {
		ask.Kind, ask.Owner = kind, fmt.Sprintf("%s:%d", id, i)
		err := try(ctx, f.wire, ask, func() {})
		if stop := r.missing([]string{forLocks, forPlaces}[i], err); stop != nil {
			return stop
		}
	}
	a := driver.Announcement{ID: id, Started: time.Now(), Protocol: driver.Protocol, TTL: time.Second}
	err := f.wire.Announce(ctx, a)
	if err == nil {
		err = f.wire.Withdraw(ctx, id)
	}
	if stop := r.missing(forLocks, err); stop != nil {
		return stop
	}
	for _, n := range needs {
		if n.use == forCheck {
			args := []any{}
			for word := range strings.FieldsSeq(n.command) {
				args = append(args, word)
			}
			err := rediswire.Wrap(f.rdb.Do(ctx, args...).Err())
			if stop := r.missing(forCheck, err); stop != nil && !rediswire.IsReply(err) {
				return stop // the server's own errors Report.Unsafe has
			}
		}
	}
	return nil
}

// missing notes the right that an error names. It returns any other error.
func (r *Report) missing(use string, err error) error {
	if err == nil {
		return nil
	}
	m := theRule.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	right := MissingRight{use, strings.TrimRight(m[1], ":;,()")}
	for _, known := range r.Missing {
		if known.Right == right.Right {
			return nil
		}
	}
	r.Missing = append(r.Missing, right)
	return nil
}
