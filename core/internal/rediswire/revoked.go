package rediswire

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// revokedBy is the field of the mark of a release by an operator that says who released the lock.
const revokedBy = "by"

// unknownUser is the name of an unknown operator.
const unknownUser = "unknown"

// revoke releases a lock for an operator. The mark of the release comes first, so that the holder does
// not take it for a loss of Redis's.
func (s *Store) revoke(ctx context.Context, ask driver.ReleaseRequest) (driver.Waiting, error) {
	mark := s.revokedName(ask.Key, ask.Owner)
	var marked *redis.IntCmd
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		marked = p.HSet(ctx, mark, revokedBy, cmp.Or(ask.By, unknownUser))
		p.PExpire(ctx, mark, ask.Revoked)
		return nil
	})
	if err != nil {
		s.log.Warn("interlock: the holder of a lock that an operator releases will take it for deleted", "key_hash", ident.Hash(ask.Key), "error", err)
	}
	ask.Revoked, ask.Remember = 0, true
	found, err := s.Release(ctx, ask)
	switch notOwner := errors.Is(err, driver.ErrNotOwner); {
	case err == nil:
		s.tell(ctx, ask.Key, ask.Owner)
	case marked.Val() == 0: // an earlier release has made the mark
	case notOwner, IsReply(err), errors.Is(err, driver.ErrRefused): // it was not released
		s.rdb.Del(ctx, mark) // or a loss of another kind would be reported as a release
		if notOwner {
			return s.Release(ctx, ask) // which says how it was lost
		}
	}
	return found, err
}

// tell has the process of an attentive holder look at its lock. If that fails, the holder
// finds out by itself.
func (s *Store) tell(ctx context.Context, key, owner string) {
	channel, message, ok := s.news(key, owner)
	if !ok {
		return
	}
	node := redis.Cmdable(s.rdb)
	if cluster, clustered := s.rdb.(*redis.ClusterClient); clustered {
		// In the whole Cluster, by the server that has the lock: another one may be away.
		master, err := cluster.MasterForKey(ctx, s.names.lock(key))
		if err != nil {
			return
		}
		node = master
	}
	if err := node.Publish(ctx, channel, message).Err(); err != nil {
		s.log.Warn("interlock: the holder of a lock that an operator has released is told at its next renewal", "key_hash", ident.Hash(key), "error", err)
	}
}

// revoked logs that an operator has released the lock of an owner of this process, and who did.
// No other process knows both the operator and the work that lost its lock. The question is a
// courtesy: no caller waits for it.
func (s *Store) revoked(key, owner string, err error) {
	if !errors.Is(err, driver.ErrRevoked) || s.shut.Load() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var rdb redis.Cmdable = s.requests.single
		if s.clustered() {
			rdb = s.requests.cluster
		}
		by := unknownUser
		if text := rdb.HMGet(ctx, s.revokedName(key, owner), revokedBy).Val(); len(text) == 1 && text[0] != nil {
			by, _ = text[0].(string)
		}
		s.log.Warn("interlock: an operator has released a lock of this process", "key_hash", ident.Hash(key), "owner", owner, "released_by", by)
	}()
}
