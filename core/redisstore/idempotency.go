package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
)

//go:embed lua/idem_claim.lua
var claimSource string

//go:embed lua/idem_renew.lua
var extendSource string

//go:embed lua/idem_mark.lua
var markSource string

//go:embed lua/idem_commit.lua
var commitSource string

//go:embed lua/idem_abandon.lua
var abandonSource string

//go:embed lua/idem_resolve.lua
var resolveSource string

var (
	claimScript   = newScript(claimSource)
	extendScript  = newScript(extendSource)
	markScript    = newScript(markSource)
	commitScript  = newScript(commitSource)
	abandonScript = newScript(abandonSource)
	resolveScript = newScript(resolveSource) // rare: its source is sent along
)

var _ idempotency.Store = (*Store)(nil)

// The replies of these scripts are words, none of which another script says:
// should replies ever get out of step, none can be taken for another's.

// claimRequest is a claim on its way, with room for its arguments.
type claimRequest struct {
	request
	ask    idempotency.ClaimRequest
	keys   [2]string
	ms     [2]int64 // lease, retention
	values [13]any
	read   [4]any
}

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, ask idempotency.ClaimRequest) (idempotency.ClaimReply, error) {
	r := &claimRequest{ask: ask}
	r.keys[0] = s.names.record(ask.ID)
	r.ms = [2]int64{wholeMilliseconds(ask.Lease), wholeMilliseconds(ask.Retention)}
	nkeys := 1
	args := append(r.values[:3], &r.keys[0])
	if ask.Tombstone {
		r.keys[1] = tombstoneOf(r.keys[0])
		args, nkeys = append(args, &r.keys[1]), 2
	}
	args = append(args, &r.ask.Token, r.ask.Fingerprint1[:], &r.ms[0], &r.ms[1], flag(ask.Strict), flag(ask.Waits),
		r.ask.Fingerprint[:], nil)
	r.read = [4]any{"hmget", &r.keys[0], "t", "r"}
	r.request = request{
		store: s, route: &s.requests, script: claimScript, nkeys: nkeys, args: args, behind: r.read[:], lock: r.keys[0], write: true, asks: true,
		deadline: ask.Deadline, done: make(chan *request, 1), late: func() { r.ask.Late(r.reply()) },
	}
	r.start()
	if !r.wait(ctx, ask.Deadline) {
		if ctx.Err() != nil {
			return idempotency.ClaimReply{}, fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
		}
		return idempotency.ClaimReply{}, driver.ErrPending
	}
	return r.reply()
}

// wholeMilliseconds rounds up: a lease is never shorter than its holder thinks.
func wholeMilliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// flag is a constant, since those take no allocation.
func flag(set bool) any {
	if set {
		return "1"
	}
	return "0"
}

// noRetrySlice is command for a reply of several strings.
type noRetrySlice struct{ *redis.StringSliceCmd }

// NoRetry implements redis.Cmder.
func (noRetrySlice) NoRetry() bool { return true }

// pair prepares a try of a request that has a command behind it: that command,
// and the script's last argument, which says whether there is one. The way of a
// redirection has room for the script alone.
func (r *request) pair() {
	if r.behind == nil {
		return
	}
	r.args[len(r.args)-1] = flag(r.alone)
	r.second = noRetrySlice{}
	if !r.alone {
		r.second.StringSliceCmd = redis.NewStringSliceCmd(context.Background(), r.behind...)
	}
}

// fits reports whether what came behind the script's reply is what that has
// promised. It is not if the connection broke between the two, or if the record
// was replaced there: a pipeline is no transaction. A token belongs to one
// request alone, so a response that came with the right one is the right one.
func (r *request) fits() bool {
	token, completed := r.completed()
	if !completed {
		return true
	}
	read := r.second.Val()
	return r.second.Err() == nil && len(read) == 2 && read[0] == token
}

// completed returns whose the response is that comes behind the script's reply.
func (r *request) completed() (token string, completed bool) {
	if r.second.StringSliceCmd == nil {
		return "", false
	}
	reply, _ := r.val.(string)
	return strings.CutPrefix(reply, "completed ")
}

// reply makes the caller's reply of what the script returned.
func (r *claimRequest) reply() (idempotency.ClaimReply, error) {
	rep := idempotency.ClaimReply{Sent: r.first, Ambiguous: r.ambiguous}
	if r.err != nil {
		return rep, wrapRecord(r.err)
	}
	if _, completed := r.completed(); completed { // and it fits
		if rep.State, rep.Response = idempotency.StateCompleted, r.second.Val()[1]; rep.Response == "" {
			return rep, idempotency.ErrDamaged
		}
		return rep, nil
	}
	words := r.words("claim")
	if words == nil {
		rep.Ambiguous = true // what that server has done is unknown
		return rep, wrapRecord(errReply)
	}
	switch state, _ := words[0].(string); {
	case state == "granted" && len(words) == 2:
		generation, _ := words[1].(int64)
		if generation < 1 {
			rep.Ambiguous = true
			return rep, wrapRecord(errReply)
		}
		if r.unacked {
			rep.Ambiguous = true // the caller does not have it, the server says otherwise
			return rep, driver.ErrNotReplicated
		}
		rep.State, rep.Generation = idempotency.StateGranted, generation
	case state == "in-flight" && len(words) == 3:
		rep.State = idempotency.StateInFlight
		left, _ := words[1].(int64)
		listed, _ := words[2].(int64)
		rep.Left, rep.Listed = time.Duration(left)*time.Millisecond, listed == 1
	case state == "damaged":
		return rep, idempotency.ErrDamaged
	default:
		if rep.State, rep.Response = stateOf(words); rep.State == 0 {
			rep.Ambiguous = true
			return rep, wrapRecord(errReply)
		}
	}
	return rep, nil
}

// words returns what follows the name of the script in its reply, or nil.
func (r *request) words(script string) []any {
	all, ok := r.val.([]any)
	if !ok || len(all) < 2 || all[0] != any(script) {
		return nil
	}
	return all[1:]
}

// stateOf reads the state of a record that is another's.
func stateOf(words []any) (state idempotency.State, response string) {
	switch name, _ := words[0].(string); {
	case name == "completed" && len(words) == 2:
		response, _ = words[1].(string)
		return idempotency.StateCompleted, response
	case name == "unavailable":
		return idempotency.StateUnavailable, ""
	case name == "mismatch":
		return idempotency.StateMismatch, ""
	case name == "unknown":
		return idempotency.StateUnknown, ""
	case name == "expired":
		return idempotency.StateExpired, ""
	case name == "in-flight":
		return idempotency.StateInFlight, ""
	}
	return 0, ""
}

// Mark implements [idempotency.Store].
func (s *Store) Mark(ctx context.Context, ask idempotency.MarkRequest) error {
	record := s.names.record(ask.ID)
	lease, keep := milliseconds(ask.Lease), milliseconds(ask.Retention)
	r := &request{
		store: s, route: &s.requests, script: markScript, nkeys: 1, args: []any{nil, nil, nil, &record, &ask.Token, &lease, &keep},
		lock: record, deadline: ask.Deadline, write: true, done: make(chan *request, 1),
	}
	r.start()
	switch word, err := r.word(ctx); {
	case err != nil:
		return err
	case word == "lost":
		return driver.ErrNotOwner
	case word != "marked":
		return wrapRecord(errReply)
	case r.unacked:
		return driver.ErrNotReplicated
	}
	return nil
}

// word waits for a reply that is one.
func (r *request) word(ctx context.Context) (string, error) {
	if !r.wait(ctx, r.deadline) {
		return "", fmt.Errorf("%w: no answer in time", driver.ErrUnavailable)
	}
	if r.err != nil {
		return "", wrapRecord(r.err)
	}
	word, _ := r.val.(string)
	return word, nil
}

// commitRequest is a commit on its way, with room for its arguments.
type commitRequest struct {
	request
	ask    idempotency.CommitRequest
	names  [3]string // record, tombstone, channel
	text   [3]string
	values [15]any
}

// Commit implements [idempotency.Store].
func (s *Store) Commit(ctx context.Context, ask idempotency.CommitRequest) (idempotency.CommitReply, error) {
	r := &commitRequest{ask: ask}
	record := s.names.record(ask.ID)
	r.names = [3]string{record, tombstoneOf(record), completionOf(record)}
	r.text = [3]string{
		strconv.FormatInt(ask.Generation, 10), milliseconds(ask.Retention), milliseconds(ask.Retention + ask.Tombstone),
	}
	nkeys := 1
	args := append(r.values[:3], &r.names[0])
	if ask.Tombstone > 0 {
		args, nkeys = append(args, &r.names[1]), 2
	}
	state := any("d")
	if ask.Response == nil {
		state = "x"
	}
	args = append(args, &r.ask.Token, r.ask.Fingerprint1[:], &r.text[0], state, r.ask.Response, &r.text[1],
		&r.names[2], s.announce.command(), &r.text[2], r.ask.Fingerprint[:])
	r.request = request{
		store: s, route: &s.requests, script: commitScript, nkeys: nkeys, args: args, lock: record,
		deadline: ask.Deadline, write: true, done: make(chan *request, 1),
	}
	r.startBefore(ctx, ask.Release)
	if !r.wait(ctx, r.deadline) {
		return idempotency.CommitReply{}, fmt.Errorf("%w: no answer in time", driver.ErrUnavailable)
	}
	if r.err != nil {
		return idempotency.CommitReply{}, wrapRecord(r.err)
	}
	words := r.words("commit")
	if words == nil {
		return idempotency.CommitReply{}, wrapRecord(errReply)
	}
	// Too few replicas are no reason to keep the answer back: it is stored, and
	// nothing that could be done now would make it safer.
	if words[0] == any("stored") {
		return idempotency.CommitReply{State: idempotency.StateGranted}, nil
	}
	rep := idempotency.CommitReply{}
	if rep.State, rep.Response = stateOf(words); rep.State == 0 {
		return rep, wrapRecord(errReply)
	}
	return rep, nil
}

// Abandon implements [idempotency.Store].
func (s *Store) Abandon(ctx context.Context, ask idempotency.AbandonRequest) error {
	record := s.names.record(ask.ID)
	channel := completionOf(record)
	r := &request{
		store: s, route: &s.requests, script: abandonScript, nkeys: 1, args: []any{nil, nil, nil, &record, &ask.Token, &channel, s.announce.command()},
		lock: record, deadline: ask.Deadline, done: make(chan *request, 1),
	}
	r.startBefore(ctx, ask.Release)
	switch word, err := r.word(ctx); {
	case err != nil:
		return err
	case word == "lost" && !r.ambiguous:
		return driver.ErrNotOwner
	case word != "lost" && word != "abandoned":
		return wrapRecord(errReply)
	}
	return nil
}

// Resolve implements [idempotency.Store].
func (s *Store) Resolve(ctx context.Context, ask idempotency.ResolveRequest) error {
	record := s.names.record(ask.ID)
	keep, trace := milliseconds(ask.Retention), milliseconds(ask.Retention+ask.Tombstone)
	nkeys, args := 1, []any{nil, nil, nil, &record}
	if ask.Tombstone > 0 {
		nkeys, args = 2, append(args, tombstoneOf(record))
	}
	r := &request{
		store: s, route: &s.requests, script: resolveScript, nkeys: nkeys,
		args: append(args, &ask.Token, ask.Response, &keep, flag(ask.Strict), &trace),
		lock: record, deadline: ask.Deadline, done: make(chan *request, 1),
	}
	r.start()
	switch word, err := r.word(ctx); {
	case err != nil:
		return err
	case word == "known" && r.ambiguous && ask.Response == nil, word == "resolved":
		return nil
	case word == "known":
		return idempotency.ErrNotUnknown
	case word == "damaged":
		return idempotency.ErrDamaged
	}
	return wrapRecord(errReply)
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, id string) error {
	record := s.names.record(id)
	var err error
	if s.clustered() {
		err = s.requests.cluster.Del(ctx, record, tombstoneOf(record)).Err()
	} else {
		err = s.requests.single.Del(ctx, record, tombstoneOf(record)).Err()
	}
	return wrap(err)
}

// Await implements [idempotency.Store].
func (s *Store) Await(id string, since time.Time, wake func()) (stop func()) {
	return s.hub.watch(completionOf(s.names.record(id)), since, func(driver.Signal) { wake() })
}

// startBefore sends a request and then makes the release of a lock, which it waits
// for; release may be nil. One server gets both in one pipeline: the request is only
// queued, and leaves with the next one of any caller, which is the release unless a
// lock is handed over in memory. The nodes of a Cluster get them at the same time.
func (r *request) startBefore(ctx context.Context, release func(context.Context)) {
	q := r.route.direct
	if q == nil || release == nil {
		r.start()
		if release != nil {
			release(ctx)
		}
		return
	}
	r.first = time.Now()
	r.prepare()
	q.add(r)
	begin := time.Now()
	release(ctx)
	q.flush(r, begin)
}

// wrapRecord is wrap for records.
func wrapRecord(err error) error {
	if isReply(err) && strings.HasPrefix(err.Error(), "WRONGTYPE ") {
		return fmt.Errorf("%w: %w", idempotency.ErrDamaged, err)
	}
	if errors.Is(err, errReply) {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return wrap(err)
}
