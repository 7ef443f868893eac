package redisstore

import (
	"context"
	"iter"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/redisrecords"
)

var _ record.Lister = (*Store)(nil)

// LookRecord implements [record.Lister].
func (s *Store) LookRecord(ctx context.Context, id string) (record.View, error) {
	return redisrecords.Lister{Wire: s.wire}.LookRecord(ctx, id)
}

// ListRecords implements [record.Lister]. It scans all masters.
func (s *Store) ListRecords(ctx context.Context, after string, claims bool) iter.Seq2[record.View, error] {
	return redisrecords.Lister{Wire: s.wire}.ListRecords(ctx, after, claims)
}
