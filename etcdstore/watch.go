package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// quiet is the time without a report after which a watch asks whether its member still
	// answers.
	quiet = 2 * time.Second
	// deaf is the time without an answer after which a watch is taken for deaf: its member
	// hangs, or the way to it is cut off in silence.
	deaf = 3 * quiet
)

var (
	errEnded = errors.New("etcdstore: the watch has ended")
	errDeaf  = errors.New("etcdstore: the member does not answer to the watch")
)

// stream is a stream of the client. All watches with the same metadata share one: it has one
// member, and the token of its begin. Where a watch has failed, later watches get another
// stream, with another member and a new token.
type stream struct {
	number   int64
	checked  atomic.Int64 // when an answer was asked for last, by the wall clock in ns
	answered atomic.Int64 // when one came last
}

// Watch implements [casstore.Server].
func (s *server) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	on := s.stream.Load()
	err := s.watch(ctx, on, prefix, report)
	if ctx.Err() == nil {
		s.stream.CompareAndSwap(on, &stream{number: on.number + 1}) // of watches that fail together, one does it
	}
	return err
}

// watch begins without a revision, and reads once when the watch stands: etcd serves a watch
// from a past revision by a slow loop.
func (s *server) watch(ctx context.Context, on *stream, prefix string, report func([]casstore.Change)) error {
	var opts []clientv3.OpOption
	if strings.HasSuffix(prefix, "/") {
		opts = append(opts, clientv3.WithPrefix())
	}
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, "interlock-watches", strconv.FormatInt(on.number, 10)))
	defer cancel(nil)
	ctx = clientv3.WithRequireLeader(ctx) // without a leader the watch fails, and does not go on in silence
	begin := time.AfterFunc(deaf, func() { cancel(errDeaf) })
	defer begin.Stop()
	w := &watching{server: s, on: on, name: prefix, ticks: time.NewTicker(quiet)}
	defer w.ticks.Stop()
	w.responses = s.client.Watch(ctx, prefix, append(opts, clientv3.WithCreatedNotify())...)
	if _, err := w.next(ctx); err != nil {
		return err
	}
	there, err := s.client.Get(ctx, prefix, opts...)
	if err != nil {
		return fmt.Errorf("%w: reading what is watched: %w", errEnded, err)
	}
	begin.Stop()
	changes := make([]casstore.Change, 0, len(there.Kvs))
	for _, kv := range there.Kvs {
		changes = append(changes, casstore.Change{Entry: entry(kv)})
	}
	report(changes)
	for {
		response, err := w.next(ctx)
		if err != nil {
			return err
		}
		deliver(response, there.Header.Revision, report)
	}
}

// deliver reports the changes of a response by transaction, without those up to a revision.
func deliver(response clientv3.WatchResponse, read int64, report func([]casstore.Change)) {
	var changes []casstore.Change
	for i, e := range response.Events {
		if e.Kv.ModRevision <= read {
			continue
		}
		change := casstore.Change{Entry: entry(e.Kv)}
		if e.Type == clientv3.EventTypeDelete {
			change = casstore.Change{Entry: casstore.Entry{Name: string(e.Kv.Key)}, Deleted: true}
		}
		changes = append(changes, change)
		if i == len(response.Events)-1 || response.Events[i+1].Kv.ModRevision != e.Kv.ModRevision {
			report(changes)
			changes = nil
		}
	}
}

// watching is a watch of the client.
type watching struct {
	*server
	on        *stream
	name      string
	responses clientv3.WatchChan
	last      time.Time // of the last response
	ticks     *time.Ticker
}

// next waits for a response. Where none comes, it asks the member for an answer, and fails if none
// comes then: a watch of a member that hangs is silent like a watch of a key that does not
// change.
func (w *watching) next(ctx context.Context) (clientv3.WatchResponse, error) {
	if w.last.IsZero() {
		w.last = time.Now()
	}
	for {
		select {
		case response, ok := <-w.responses:
			w.last = time.Now()
			return response, fails(ctx, response, ok)
		case <-ctx.Done():
			return clientv3.WatchResponse{}, context.Cause(ctx)
		case now := <-w.ticks.C:
			switch silent := min(now.Sub(w.last), time.Duration(now.UnixNano()-w.on.answered.Load())); {
			case silent >= deaf:
				return clientv3.WatchResponse{}, errDeaf
			case silent >= quiet:
				w.ask(ctx, now)
			}
		}
	}
}

// ask asks for an answer on the stream, unless another watch of it has just done so: it begins a watch, and ends it when
// that stands. A proxy of etcd (grpc-proxy) does not answer to requests for the progress of a watch.
func (w *watching) ask(ctx context.Context, now time.Time) {
	last := w.on.checked.Load()
	if now.UnixNano()-last < int64(quiet/2) || !w.on.checked.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, deaf)
		defer cancel()
		responses := w.client.Watch(ctx, w.name, clientv3.WithCreatedNotify())
		select {
		case response, ok := <-responses:
			if fails(ctx, response, ok) == nil {
				w.on.answered.Store(time.Now().UnixNano())
			}
		case <-ctx.Done(): // the silence that follows says that it has failed
		}
	}()
}

// fails returns why a watch has ended, or nil if it has not.
func fails(ctx context.Context, response clientv3.WatchResponse, ok bool) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ok:
		return errEnded
	case response.Err() != nil:
		return fmt.Errorf("%w: %w", errEnded, response.Err())
	}
	return nil
}

// entry is the content of a key.
func entry(kv *mvccpb.KeyValue) casstore.Entry {
	return casstore.Entry{
		Name: string(kv.Key), Value: string(kv.Value), Revision: casstore.Revision{Number: kv.ModRevision},
	}
}
