package riverlock

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"

	"github.com/riverqueue/river"
	"go.opentelemetry.io/otel/propagation"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// keyName is the name in the metadata of the key that a job was inserted with.
const keyName = "Interlock-Job-Key"

// Carry returns options for a job that is about to be inserted under ctx. It adds what goes along
// to the metadata: tickets, fencing tokens, and the trace context of ctx. The spans of the locks
// of the job link to that trace. It does not change opts, which may be nil.
//
//	args := SettleArgs{Account: "42"}
//	opts, err := riverlock.Carry(ctx, args, nil, once.Along{Lock: ticket})
//	if err != nil {
//		return err
//	}
//	_, err = client.Insert(ctx, args, opts)
//
// In the handler of an idempotent endpoint, a job or a function of package once it gives the job
// a key that is derived from the request ([idempotency.CallKey]): a handler that runs again after
// a crash inserts a second job with that key, and [Idempotent] carries one of the two out. The
// n-th job of a kind has its own key. A handler that inserts jobs in several goroutines names
// each by [idempotency.WithCall]. A job that is inserted in the transaction of the request
// (Client.InsertTx) needs no key. A job with the ticket of a request is another job in each attempt, with a key of
// its own ([once.Along.Put]), and must not be unique (river.UniqueOpts).
func Carry(ctx context.Context, args river.JobArgs, opts *river.InsertOpts, along once.Along) (*river.InsertOpts, error) {
	var all river.InsertOpts
	if opts != nil {
		all = *opts
	}
	if along.Claim != (idempotency.Ticket{}) && (isUnique(all) || isUnique(optionsOf(args))) {
		return nil, fmt.Errorf("interlock: the job was not prepared: %w: with UniqueOpts River takes it for the job with an earlier ticket "+
			"of the request: a job with a ticket must not be unique", core.ErrConfig)
	}
	encoded, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("interlock: the job was not prepared: %w", err)
	}
	texts := make(map[string]string)
	id, err := along.Put(ctx, "insert "+args.Kind(), encoded, texts)
	if err != nil {
		return nil, fmt.Errorf("interlock: the job was not prepared: %w", err)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(texts))
	if id != "" {
		texts[keyName] = url.PathEscape(args.Kind()) + "/" + once.KeyOf(id, texts)
		delete(texts, once.MessageKey)
	}
	if len(texts) == 0 {
		return &all, nil
	}
	merged := make(map[string]json.RawMessage)
	if len(all.Metadata) > 0 {
		if err := json.Unmarshal(all.Metadata, &merged); err != nil {
			return nil, fmt.Errorf("interlock: the job was not prepared: its metadata is no JSON object: %w", err)
		}
	}
	for name, text := range texts {
		if merged[name], err = json.Marshal(text); err != nil {
			return nil, err
		}
	}
	all.Metadata, err = json.Marshal(merged)
	return &all, err
}

// optionsOf returns the options that come with the arguments of a job.
func optionsOf(args river.JobArgs) river.InsertOpts {
	if with, ok := args.(river.JobArgsWithInsertOpts); ok {
		return with.InsertOpts()
	}
	return river.InsertOpts{}
}

// isUnique reports whether River may skip the insertion of a job for another one.
func isUnique(opts river.InsertOpts) bool { return !reflect.ValueOf(opts.UniqueOpts).IsZero() }
