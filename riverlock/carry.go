package riverlock

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/riverqueue/river"
	"go.opentelemetry.io/otel/propagation"

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
// (Client.InsertTx) needs no key.
func Carry(ctx context.Context, args river.JobArgs, opts *river.InsertOpts, along once.Along) (*river.InsertOpts, error) {
	var all river.InsertOpts
	if opts != nil {
		all = *opts
	}
	key, found, done, err := idempotency.CallKey(ctx, "insert "+args.Kind())
	if err != nil {
		return nil, fmt.Errorf("interlock: the job was not prepared: %w", err)
	}
	done()
	texts := make(map[string]string)
	if err := along.Put(ctx, texts); err != nil {
		return nil, fmt.Errorf("interlock: the job was not prepared: %w", err)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(texts))
	if found {
		texts[keyName] = url.PathEscape(args.Kind()) + "/" + key
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
