package explore_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/httplock"
)

// operations are services that use the operations of the module as they are meant to be used.
var operations = map[string]explore.Service{
	"a transaction of the request": service(func(ctx context.Context, p *explore.Process) error {
		tx, err := p.Tx(ctx)
		if err != nil {
			return err
		}
		add(tx, "account/42")
		return nil
	}, idempotency.Transactional()),

	"a request under a lock": {Handler: func(p *explore.Process) http.Handler {
		locker := p.Locker()
		engine := p.Engine(idempotency.Under(core.Serialize(locker, "account/42")))
		return httplock.Idempotent(engine)(answers(func(ctx context.Context) error {
			return post(ctx, &httplock.Transport{Base: p}, "http://bank/charge", "")
		}))
	}, Requests: []explore.Request{{Body: "1"}, {Body: "2"}}},

	"a strict request": service(func(ctx context.Context, p *explore.Process) error {
		return post(ctx, p, "http://bank/charge", "")
	}, idempotency.Strict()),

	"duplicates that wait": service(func(ctx context.Context, p *explore.Process) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		return post(ctx, p, "http://bank/charge", "")
	}, idempotency.WaitReplay(5*time.Second)),

	"a message that is consumed once": consumer(func(ctx context.Context, _ *explore.Process, engine *idempotency.Engine, m explore.Message) error {
		_, err := once.Do(ctx, engine, m.ID, m.Body, func(ctx context.Context, _ string) (int, error) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				return 0, err
			}
			return 1, explore.Effect(ctx, "mail", "")
		})
		return err
	}),

	"a message with an effect that deduplicates": consumer(func(ctx context.Context, _ *explore.Process, engine *idempotency.Engine, m explore.Message) error {
		_, err := once.Do(ctx, engine, m.ID, m.Body, func(ctx context.Context, _ string) (int, error) {
			explore.Point(ctx, "the mail is written")
			return 1, explore.Effect(ctx, "mail", idempotency.DownstreamKey(ctx))
		})
		return err
	}),

	"a request that is handed over with its lock": handedOver(),

	"two locks at once": locked(func(ctx context.Context, p *explore.Process, m explore.Message, locker *core.Locker) error {
		lease, err := locker.LockAll(ctx, []string{"account/1", "account/2"})
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release(ctx) }()
		return fenced(lease.Context(), p, m)
	}),

	"a lock without waiting": locked(func(ctx context.Context, p *explore.Process, m explore.Message, locker *core.Locker) error {
		lease, err := locker.TryLock(ctx, "account/1")
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release(ctx) }()
		return fenced(lease.Context(), p, m)
	}),

	"readers and permits": locked(func(ctx context.Context, p *explore.Process, m explore.Message, locker *core.Locker) error {
		return locker.Do(ctx, "rates", func(ctx context.Context) error {
			return locker.Do(ctx, "partner", func(ctx context.Context) error {
				return locker.Do(ctx, "account/1", func(ctx context.Context) error {
					return fenced(ctx, p, m)
				})
			}, core.Permits(1))
		}, core.Shared())
	}),
}

// handedOver is a service that hands its request and its lock to a job, which charges. The record of the message
// keeps a redelivered message from its work.
func handedOver() explore.Service {
	return explore.Service{
		Handler: func(p *explore.Process) http.Handler {
			engine := p.Engine(idempotency.Under(core.Serialize(p.Locker(), "account/42")))
			return httplock.Idempotent(engine)(responds(http.StatusAccepted, func(ctx context.Context) error {
				claim, err := idempotency.HandOver(ctx, 3*time.Minute)
				if err != nil {
					return err
				}
				lock, err := core.HandOver(ctx, 3*time.Minute)
				if err != nil {
					return err
				}
				m := explore.Message{Metadata: map[string]string{}}
				text, _ := claim.MarshalText()
				m.Body = string(text)
				if m.ID, err = (once.Along{Lock: lock, Claim: claim}).Put(ctx, "charges", text, m.Metadata); err != nil {
					return err
				}
				return p.Send(ctx, m)
			}))
		},
		Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
			locker, engine := p.Locker(), p.Engine()
			rule := core.Serialize(locker, "account/42")
			messages := engine.With(idempotency.Under(rule), idempotency.Service("messages"))
			return func(ctx context.Context, m explore.Message) error {
				ctx, err := once.Received(ctx, m.Metadata)
				if err != nil {
					return err
				}
				var claim idempotency.Ticket
				if err := claim.UnmarshalText([]byte(m.Body)); err != nil {
					return err
				}
				_, err = once.Do(ctx, messages, once.KeyOf(m.ID, m.Metadata), m.Body, func(ctx context.Context, _ string) (int, error) {
					err := engine.TakeOver(ctx, claim, func(ctx context.Context) (endpoint.Response, error) {
						if err := idempotency.MarkEffect(ctx); err != nil {
							return endpoint.Response{}, err
						}
						return endpoint.Response{Status: http.StatusCreated}, post(ctx, p, "http://bank/charge", "")
					})
					if errors.Is(err, idempotency.ErrTicketFinished) || errors.Is(err, idempotency.ErrTicketRanOut) {
						err = nil
					}
					return 1, err
				}, once.Metadata(m.Metadata))
				return err
			}
		},
	}
}

// add adds one to a row.
func add(tx *explore.Tx, key string) {
	value, _ := tx.Get(key)
	n, _ := strconv.Atoi(value)
	tx.Put(key, strconv.Itoa(n+1))
}

// fenced adds one to a balance under the token of the lock, once for each message.
func fenced(ctx context.Context, p *explore.Process, m explore.Message) error {
	tx := p.Begin(ctx)
	if err := tx.Insert("done/"+m.ID, ""); err != nil {
		return nil //nolint:nilerr // it was done before
	}
	tx.Fence("account/1", core.LeaseFromContext(ctx).Token())
	add(tx, "balance")
	return core.Commit(ctx, tx.Commit)
}

// consumer makes a consumer of two messages.
func consumer(f func(context.Context, *explore.Process, *idempotency.Engine, explore.Message) error) explore.Service {
	return explore.Service{
		Messages: []explore.Message{{ID: "m1"}, {ID: "m2"}},
		Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
			engine := p.Engine()
			return func(ctx context.Context, m explore.Message) error { return f(ctx, p, engine, m) }
		},
	}
}

// locked makes a consumer that carries its message out once, and adds one to a balance under locks.
func locked(f func(context.Context, *explore.Process, explore.Message, *core.Locker) error) explore.Service {
	return explore.Service{
		Messages: []explore.Message{{ID: "m1"}, {ID: "m2"}},
		Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
			locker := p.Locker()
			return func(ctx context.Context, m explore.Message) error { return f(ctx, p, m, locker) }
		},
		Invariant: func(w *explore.World) error {
			if n, _ := w.Row("balance"); n != "2" {
				return errors.New("balance " + n)
			}
			return nil
		},
	}
}

func TestTheOperationsAreCleanWhereTheyAreUsedAsMeant(t *testing.T) {
	for name, s := range operations {
		t.Run(name, func(t *testing.T) { explore.Run(t, s) })
	}
}
