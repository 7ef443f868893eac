package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/casstore"
)

var errEnded = errors.New("etcdstore: the watch has ended")

// Watch implements [casstore.Server]. It begins without a revision, and reads once when the
// watch stands: etcd serves a watch from a past revision by a slow loop.
func (s *server) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	// Without a leader the watch fails, and does not go on in silence.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	var opts []clientv3.OpOption
	if strings.HasSuffix(prefix, "/") {
		opts = append(opts, clientv3.WithPrefix())
	}
	watch := s.client.Watch(ctx, prefix, append(opts, clientv3.WithCreatedNotify())...)
	created, ok := <-watch
	if err := fails(ctx, created, ok); err != nil {
		return err
	}
	there, err := s.client.Get(ctx, prefix, opts...)
	if err != nil {
		return fmt.Errorf("etcdstore: reading what is watched: %w", err)
	}
	changes := make([]casstore.Change, 0, len(there.Kvs))
	for _, kv := range there.Kvs {
		changes = append(changes, casstore.Change{Entry: entry(kv)})
	}
	report(changes)
	for response := range watch {
		if err := fails(ctx, response, true); err != nil {
			return err
		}
		changes = nil
		for i, e := range response.Events {
			if e.Kv.ModRevision <= there.Header.Revision {
				continue // it was read
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
	return fails(ctx, clientv3.WatchResponse{}, false)
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

// entry is what etcd has under a key.
func entry(kv *mvccpb.KeyValue) casstore.Entry {
	return casstore.Entry{
		Name: string(kv.Key), Value: string(kv.Value), Revision: casstore.Revision{Number: kv.ModRevision},
	}
}
