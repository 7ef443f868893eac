package explore_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/httplock"
)

// post calls a service outside.
func post(ctx context.Context, client http.RoundTripper, url, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	if key != "" {
		r.Header.Set(idempotency.KeyHeader, strconv.Quote(key))
	}
	res, err := (&http.Client{Transport: client}).Do(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// answers makes a handler that answers 201, and 503 after an error.
func answers(f func(ctx context.Context) error) http.Handler { return responds(http.StatusCreated, f) }

func responds(status int, f func(ctx context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f(r.Context()); err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(status)
	})
}

// service makes a service of one idempotent endpoint.
func service(f func(ctx context.Context, p *explore.Process) error, opts ...idempotency.Option) explore.Service {
	return explore.Service{Handler: func(p *explore.Process) http.Handler {
		return httplock.Idempotent(p.Engine(opts...))(answers(func(ctx context.Context) error { return f(ctx, p) }))
	}}
}

// mutants are handlers, each with a fault, and with the fault mended.
var mutants = map[string]struct {
	faulty, mended explore.Service
	faults, broken string // of the report
}{
	"an effect without MarkEffect": {
		faulty: service(func(ctx context.Context, p *explore.Process) error {
			return post(ctx, p, "http://bank/charge", "")
		}),
		mended: service(func(ctx context.Context, p *explore.Process) error {
			if err := idempotency.MarkEffect(ctx); err != nil {
				return err
			}
			return post(ctx, p, "http://bank/charge", "")
		}),
		faults: "process A died after POST /charge of bank and before commit of the answer",
		broken: "POST /charge of bank: twice for request 1; without faults once",
	},
	"MarkEffect after the effect": {
		faulty: service(func(ctx context.Context, p *explore.Process) error {
			if err := post(ctx, p, "http://bank/charge", ""); err != nil {
				return err
			}
			return idempotency.MarkEffect(ctx)
		}),
		mended: service(func(ctx context.Context, p *explore.Process) error {
			return post(ctx, &httplock.Transport{Base: p}, "http://bank/charge", "") // the bank deduplicates
		}),
		faults: "process A died after POST /charge of bank and before MarkEffect",
		broken: "POST /charge of bank: twice for request 1; without faults once",
	},
	"an effect under a key that is new in each attempt": {
		faulty: service(func(ctx context.Context, p *explore.Process) error {
			return post(ctx, p, "http://bank/charge", strconv.FormatInt(time.Now().UnixNano(), 36))
		}),
		mended: service(func(ctx context.Context, p *explore.Process) error {
			return post(ctx, p, "http://bank/charge", idempotency.DownstreamKey(ctx))
		}),
		faults: "process A died after POST /charge of bank and before commit of the answer",
		broken: "POST /charge of bank: twice for request 1; without faults once",
	},
	"a step under a name that is new in each attempt": {
		faulty: service(func(ctx context.Context, p *explore.Process) error {
			return chargeAndMail(ctx, p, strconv.FormatInt(time.Now().UnixNano(), 36))
		}),
		mended: service(func(ctx context.Context, p *explore.Process) error {
			return chargeAndMail(ctx, p, "charge")
		}),
		faults: "process A died after step (2) and before POST /send of mail",
		broken: "POST /charge of bank: twice for request 1; without faults once",
	},
	"a lock that is released before the commit": {
		faulty: deposits(func(ctx context.Context, p *explore.Process, m explore.Message, locker *core.Locker) error {
			var tx *explore.Tx
			err := locker.Do(ctx, "account/42", func(context.Context) (err error) {
				tx, err = deposit(ctx, p, m)
				return err
			})
			if err != nil {
				return err
			}
			return tx.Commit()
		}),
		mended: deposits(func(ctx context.Context, p *explore.Process, m explore.Message, locker *core.Locker) error {
			return locker.Do(ctx, "account/42", func(ctx context.Context) error {
				tx, err := deposit(ctx, p, m)
				if err != nil {
					return err
				}
				tx.Fence("account/42", core.LeaseFromContext(ctx).Token())
				return core.Commit(ctx, tx.Commit)
			})
		}),
		faults: "process B stood still for 10s after release account/42 and before COMMIT",
		broken: `row account/42 is "1"; without faults "2"`,
	},
	"a ticket that is sent before the rows": {
		faulty: books(func(ctx context.Context, p *explore.Process) error {
			if err := sendTicket(ctx, p); err != nil {
				return err
			}
			return book(ctx, p)
		}),
		mended: books(func(ctx context.Context, p *explore.Process) error {
			if err := book(ctx, p); err != nil {
				return err
			}
			return sendTicket(ctx, p)
		}),
		faults: "process A died after sending of a message and before COMMIT",
		broken: `row order/1 is missing; without faults it is "accepted"`,
	},
}

// chargeAndMail has two steps. The bank does not deduplicate, and the service for mails does.
func chargeAndMail(ctx context.Context, p *explore.Process, name string) error {
	_, err := idempotency.Step(ctx, name, func(ctx context.Context) (int, error) {
		return 1, post(ctx, p, "http://bank/charge", "")
	}, idempotency.Once())
	if err != nil {
		return err
	}
	_, err = idempotency.Step(ctx, "mail", func(ctx context.Context) (int, error) {
		return 1, post(ctx, p, "http://mail/send", idempotency.DownstreamKey(ctx, "mail"))
	})
	return err
}

// deposit adds one to a balance, in a transaction that is open still.
func deposit(ctx context.Context, p *explore.Process, m explore.Message) (*explore.Tx, error) {
	tx := p.Begin(ctx)
	if err := tx.Insert("done/"+m.ID, ""); err != nil {
		return nil, err
	}
	balance, _ := tx.Get("account/42")
	n, _ := strconv.Atoi(balance)
	tx.Put("account/42", strconv.Itoa(n+1))
	return tx, nil
}

// deposits makes a consumer of two messages, each of which adds one to a balance.
func deposits(f func(context.Context, *explore.Process, explore.Message, *core.Locker) error) explore.Service {
	return explore.Service{
		Messages: []explore.Message{{ID: "1"}, {ID: "2"}},
		Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
			locker := p.Locker()
			return func(ctx context.Context, m explore.Message) error {
				if err := f(ctx, p, m, locker); !errors.Is(err, explore.ErrDuplicate) {
					return err
				}
				return nil // it was done before
			}
		},
	}
}

func book(ctx context.Context, p *explore.Process) error {
	tx := p.Begin(ctx)
	tx.Put("order/1", "accepted")
	return tx.Commit()
}

func sendTicket(ctx context.Context, p *explore.Process) error {
	ticket, err := idempotency.HandOver(ctx, 3*time.Minute)
	if err != nil {
		return err
	}
	text, err := ticket.MarshalText()
	if err != nil {
		return err
	}
	return p.Send(ctx, explore.Message{Body: string(text)})
}

// books makes a service that hands its request over to a job.
func books(f func(ctx context.Context, p *explore.Process) error) explore.Service {
	s := service(func(ctx context.Context, p *explore.Process) error { return f(ctx, p) })
	s.Consumer = func(p *explore.Process) func(context.Context, explore.Message) error {
		engine := p.Engine()
		return func(ctx context.Context, m explore.Message) error {
			var ticket idempotency.Ticket
			if err := ticket.UnmarshalText([]byte(m.Body)); err != nil {
				return err
			}
			err := engine.TakeOver(ctx, ticket, func(context.Context) (endpoint.Response, error) {
				return endpoint.Response{Status: http.StatusCreated}, nil
			})
			if errors.Is(err, idempotency.ErrTicketFinished) || errors.Is(err, idempotency.ErrTicketRanOut) {
				return nil
			}
			return err
		}
	}
	return s
}

func TestEachFaultyHandlerIsFoundAtItsPlace(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			r := explore.Find(t, m.faulty)
			if r.Failure == nil {
				t.Fatalf("nothing found: %v", r)
			}
			if r.Failure.Faults != m.faults || !strings.Contains(r.Failure.Broken, m.broken) {
				t.Errorf("found:\n%v\nwant:\n%s: %s", r.Failure, m.faults, m.broken)
			}
			again := explore.Find(t, m.faulty, explore.Path(r.Failure.Path))
			if again.Failure == nil || again.Failure.String() != r.Failure.String() {
				t.Errorf("the path repeats:\n%v\nwant:\n%v", again.Failure, r.Failure)
			}
		})
	}
}

func TestTheMendedHandlersAreClean(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) { explore.Run(t, m.mended) })
	}
}
