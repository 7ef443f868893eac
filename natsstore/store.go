package natsstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/lanes"
)

// Store keeps locks in a bucket. It is a store for core.New. Make it with [New].
type Store struct {
	*casstore.Store
	server *server
}

// New makes a store on a bucket, which [Create] has made. The connection of js is the user's: the store does not close
// it. The options are in package casstore; casstore.Timeout is 500 ms by default. New sends nothing. It returns
// driver.ErrConfig if js is nil, the name of the bucket is none, or an option cannot work. Close the store after the
// locker, and the connection after the store.
func New(js jetstream.JetStream, bucket string, opts ...casstore.Option) (*Store, error) {
	if js == nil || !isBucket(bucket) {
		return nil, fmt.Errorf("%w: natsstore.New takes a jetstream.JetStream, and the name of a bucket: letters, digits, - and _; not %q",
			driver.ErrConfig, bucket)
	}
	server := newServer(js, bucket)
	store, err := casstore.New(server, append([]casstore.Option{casstore.Timeout(answerWait)}, opts...)...)
	if err != nil {
		return nil, err
	}
	return &Store{Store: store, server: server}, nil
}

// Close closes the store as [casstore.Store.Close] does, and ends its subscription.
func (s *Store) Close() error {
	err := s.Store.Close()
	s.server.replies.close()
	return err
}

// Server makes the adapter alone, which [New] gives to casstore.New. Its subscription ends with the connection.
func Server(js jetstream.JetStream, bucket string) casstore.Server { return newServer(js, bucket) }

func isBucket(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// perMillisecond is the maximum average number of messages a millisecond that a bucket takes, so that a bucket that is made
// anew under its name has greater numbers than before.
const perMillisecond = 16

// Create makes a bucket with the settings that the store needs, on so many members: three, or five. It changes
// nothing if there is one with these settings, and returns the error of NATS if there is one with others. The fencing
// tokens of a bucket that was deleted and made anew go on.
func Create(ctx context.Context, js jetstream.JetStream, bucket string, replicas int) error {
	if js == nil || !isBucket(bucket) {
		return fmt.Errorf("%w: natsstore.Create of the bucket %q", driver.ErrConfig, bucket)
	}
	if stream, err := js.Stream(ctx, streamOf(bucket)); err == nil {
		if found := settings(stream.CachedInfo().Config); len(found) > 0 {
			return fmt.Errorf("%w: there is a bucket %q: %s", driver.ErrConfig, bucket, strings.Join(found, "; "))
		}
		return nil
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamOf(bucket), Subjects: []string{subjectsOf(bucket) + ">"}, Description: "locks (natsstore)",
		Replicas: replicas, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1,
		AllowDirect: true, AllowAtomicPublish: true, AllowMsgTTL: true, DenyDelete: true,
		FirstSeq: uint64(time.Now().UnixMilli()) * perMillisecond,
	})
	return err
}

func streamOf(bucket string) string   { return "KV_" + bucket }
func subjectsOf(bucket string) string { return "$KV." + bucket + "." }

// server is a bucket to package casstore.
type server struct {
	js       jetstream.JetStream
	nc       *nats.Conn
	subjects string // the beginning of all subjects of the bucket
	stream   string
	direct   string // the subject of reads
	replies  replies
	lane     lanes.Lanes[*request]
	flights  chan struct{} // has room for the batches under way
	seen     atomic.Uint64 // the last sequence of all answers
	trip     atomic.Int64  // how long a read takes, in ns

	mu    sync.Mutex
	known map[string]record // entries as they were seen last, by name: for conditions
}

func newServer(js jetstream.JetStream, bucket string) *server {
	api := "$JS.API."
	if o := js.Options(); o.Domain != "" {
		api = "$JS." + o.Domain + ".API."
	} else if o.APIPrefix != "" {
		api = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	s := &server{
		js: js, nc: js.Conn(), subjects: subjectsOf(bucket), stream: streamOf(bucket),
		direct: api + "DIRECT.GET." + streamOf(bucket), known: map[string]record{}, flights: make(chan struct{}, under),
	}
	s.replies.nc = s.nc
	s.lane.Under, s.lane.Next, s.lane.Send = 1, next, s.send
	return s
}

// Commit implements [casstore.Server].
func (s *server) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	switch writes := len(txn.If)+len(txn.Then) > 0; {
	case ctx.Err() != nil:
		return casstore.Answer{}, notSent(context.Cause(ctx))
	case !writes && len(txn.Read)+len(txn.List) == 0:
		return casstore.Answer{Done: true}, nil
	case !writes && txn.Late && s.seen.Load() > 0:
		r := &request{Request: lanes.Begin(ctx), txn: txn}
		s.complete(ctx, []*request{r}, s.seen.Load())
		return r.answer, r.err
	}
	return s.commit(ctx, txn)
}

// sees notes that an answer is from a sequence.
func (s *server) sees(sequence uint64) {
	for last := s.seen.Load(); last < sequence && !s.seen.CompareAndSwap(last, sequence); last = s.seen.Load() {
	}
}
