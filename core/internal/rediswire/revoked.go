package rediswire

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// RevokedBy is the field of the mark of a release by an operator ([Store.RevokedName]) that says
// who released the lock.
const RevokedBy = "by"

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
		by := "unknown"
		if text := rdb.HMGet(ctx, s.RevokedName(key, owner), RevokedBy).Val(); len(text) == 1 && text[0] != nil {
			by, _ = text[0].(string)
		}
		s.log.Warn("interlock: an operator has released a lock of this process", "key_hash", ident.Hash(key), "owner", owner, "released_by", by)
	}()
}
