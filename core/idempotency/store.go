package idempotency

import "github.com/interlock-go/interlock/core/idempotency/record"

// Store is a backend that keeps records. redisstore.New makes one on Redis, and
// pgstore.New one on PostgreSQL. The methods of a Store are for the authors of stores;
// see [record.Store].
type Store = record.Store

// ErrNotUnknown says that there is nothing to resolve: the request is still in flight,
// its answer is stored, its claim is free for the next attempt, or there is no record
// of it.
var ErrNotUnknown = record.ErrNotUnknown

// ErrDamaged says that the data under the name of a record is not a record, or a record
// of an unknown version. The request is refused, because it may have been carried out.
var ErrDamaged = record.ErrDamaged

// ErrNoAttempt says that a context does not belong to a request to an idempotent
// endpoint: the middleware is missing, or the context was not passed on.
var ErrNoAttempt = record.ErrNoAttempt

// ErrRolledBack says that the transaction of a request (pgstore.Tx) was rolled back: the
// request has had no effect in the database.
var ErrRolledBack = record.ErrRolledBack
