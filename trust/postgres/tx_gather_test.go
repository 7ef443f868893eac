//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

var errNoMoney = errors.New("the account has no money")

// together is an endpoint with requests that share a transaction.
type together struct {
	t        *testing.T
	db       *sql.DB
	locker   *core.Locker
	batches  *pgstore.Batches[string, string]
	endpoint http.Handler
	brought  chan struct{}
	taken    chan struct{} // closed when the section has begun
	left     chan struct{} // closed when the callers that leave have left
	section  string        // what the section does
	retrying bool          // nothing fails any more
}

func newTogether(t *testing.T, section string) *together {
	t.Helper()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE IF NOT EXISTS gathered (item text, txid bigint DEFAULT txid_current())")
	store := newStore(t, db)
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	g := &together{t: t, db: db, locker: locker, brought: make(chan struct{}, 10), taken: make(chan struct{}), left: make(chan struct{}), section: section}
	each := pgstore.Each(g.item)
	g.batches = pgstore.Gather(store, locker, func(ctx context.Context, tx *pgstore.Transaction, key string, batch []string) ([]string, error) {
		results, err := each(ctx, tx, key, batch)
		if g.retrying {
			return results, err
		}
		close(g.taken)
		switch g.section {
		case "fails":
			return nil, errNoMoney
		case "returns one result":
			return results[:1], nil
		case "panics":
			panic(errNoMoney)
		case "commits":
			_ = tx.SQL().Commit()
		case "waits":
			<-g.left
		case "loses a claim":
			execute(t, db, "UPDATE interlock_record SET token = 'another' WHERE id = (SELECT id FROM interlock_record WHERE state = 'c' ORDER BY id LIMIT 1)")
		}
		return results, err
	})
	g.endpoint = httplock.Idempotent(newEngine(t, store, idempotency.Optional()))(http.HandlerFunc(g.handle))
	return g
}

func (g *together) item(ctx context.Context, tx *pgstore.Transaction, _, item string) (string, error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO gathered VALUES ($1)", item); err != nil {
		return "", err
	}
	if strings.HasPrefix(item, "refused") {
		return "", errNoMoney // after its statement
	}
	return "paid " + item, nil
}

func (g *together) handle(w http.ResponseWriter, r *http.Request) {
	item := r.URL.Query().Get("item")
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	if strings.HasPrefix(item, "leaves") && !g.retrying {
		go func() { <-g.taken; leave() }()
	}
	paid, err := g.batches.Do(announced{ctx, sync.OnceFunc(func() { g.brought <- struct{}{} })}, "account/1", item)
	if strings.HasPrefix(item, "leaves") && !g.retrying {
		close(g.left)
	}
	if lease, busy := g.locker.TryLock(r.Context(), "account/1"); busy == nil {
		if err == nil && !strings.HasPrefix(item, "nokey") {
			g.t.Error("the lock is free before the transaction has ended")
		}
		_ = lease.Release(r.Context())
	}
	switch {
	case errors.Is(err, errNoMoney) && g.section == "", strings.HasPrefix(item, "leaves") && err != nil:
		http.Error(w, "no: "+fmt.Sprint(errors.Is(err, gather.ErrUnknown)), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, "failed", http.StatusInternalServerError)
	case strings.HasPrefix(item, "fails") && !g.retrying:
		http.Error(w, "failed later", http.StatusInternalServerError)
	case strings.HasPrefix(item, "panics") && !g.retrying:
		panic(errNoMoney)
	default:
		_, _ = io.WriteString(w, paid)
	}
}

// send sends a request for each item, with the item as its key, while the lock is held, so that they share a batch. It
// returns the answers.
func (g *together) send(items ...string) []string {
	g.t.Helper()
	lease, err := g.locker.Lock(g.t.Context(), "account/1")
	if err != nil {
		g.t.Fatal(err)
	}
	answers := make([]string, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() {
			answers[i] = g.request(item)
		})
		<-g.brought
	}
	if err := lease.Release(g.t.Context()); err != nil {
		g.t.Error(err)
	}
	all.Wait()
	return answers
}

func (g *together) request(item string) (answer string) {
	defer func() {
		if recover() != nil {
			answer = "panic"
		}
	}()
	r := httptest.NewRequestWithContext(g.t.Context(), http.MethodPost, "/?item="+item, strings.NewReader("{}"))
	if !strings.HasPrefix(item, "nokey") {
		r.Header.Set("Idempotency-Key", item+g.t.Name()[strings.LastIndexByte(g.t.Name(), '/')+1:])
	}
	w := httptest.NewRecorder()
	g.endpoint.ServeHTTP(w, r)
	if answer, _, _ = strings.Cut(strings.TrimSpace(w.Body.String()), "\n"); strings.HasPrefix(answer, "{") {
		_, answer, _ = strings.Cut(answer, "urn:interlock:problem:")
		answer, _, _ = strings.Cut(answer, `"`)
	}
	return fmt.Sprint(w.Code, " ", answer)
}

func TestRequestsOfABatchCommitTogetherOrNotAtAll(t *testing.T) {
	const rolledBack = "503 idempotency-rolled-back"
	for name, c := range map[string]struct {
		section      string
		items, want  []string
		transactions int      // of the first answers
		retried      []string // the answers to the same requests once more
	}{
		"all succeed": {
			"",
			[]string{"a", "b", "c", "d"},
			[]string{"200 paid a", "200 paid b", "200 paid c", "200 paid d"},
			1,
			[]string{"200 paid a", "200 paid b", "200 paid c", "200 paid d"},
		},
		"an item is refused": {
			"",
			[]string{"a", "refused", "c"},
			[]string{"200 paid a", "422 no: false", "200 paid c"},
			1,
			[]string{"200 paid a", "422 no: false", "200 paid c"},
		},
		"a handler fails later": {
			"",
			[]string{"a", "fails", "c"},
			[]string{rolledBack, "500 failed later", rolledBack},
			0,
			[]string{"200 paid a", "200 paid fails", "200 paid c"},
		},
		"a handler panics later": {
			"",
			[]string{"a", "panics", "c"},
			[]string{rolledBack, "panic", rolledBack},
			0,
			[]string{"200 paid a", "200 paid panics", "200 paid c"},
		},
		"a caller leaves": {
			"waits",
			[]string{"a", "leaves", "c"},
			[]string{rolledBack, "422 no: true", rolledBack},
			0,
			[]string{"200 paid a", "422 no: true", "200 paid c"},
		},
		"the section fails":  {"fails", []string{"a", "b"}, []string{"500 failed", "500 failed"}, 0, []string{"200 paid a", "200 paid b"}},
		"the section panics": {"panics", []string{"a", "b"}, []string{"panic", "500 failed"}, 0, []string{"200 paid a", "200 paid b"}},
		"too few results":    {"returns one result", []string{"a", "b"}, []string{"500 failed", "500 failed"}, 0, []string{"200 paid a", "200 paid b"}},
		"the section commits": {
			"commits",
			[]string{"a", "b"},
			[]string{"409 idempotency-outcome-unknown", "409 idempotency-outcome-unknown"},
			1,
			[]string{"409 idempotency-in-flight", "409 idempotency-in-flight"},
		},
		"a request has no key":         {"", []string{"nokey", "b"}, []string{"200 paid nokey", "200 paid b"}, 1, []string{"200 paid nokey", "200 paid b"}},
		"no request has a key":         {"", []string{"nokey1", "nokey2"}, []string{"200 paid nokey1", "200 paid nokey2"}, 1, nil},
		"another attempt has a record": {"loses a claim", []string{"a", "b"}, nil, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newTogether(t, c.section)
			if got := g.send(c.items...); c.want == nil {
				lost, back := 0, 0
				for _, answer := range got {
					if answer == rolledBack {
						back++
					} else if answer == "409 idempotency-in-flight" {
						lost++
					}
				}
				if lost != 1 || back != 1 {
					t.Errorf("%q; want one request in flight elsewhere, and the other rolled back", got)
				}
			} else if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("the answers %q; want %q", got, c.want)
			}
			var rows, transactions int
			count := func() {
				t.Helper()
				if err := g.db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT txid) FROM gathered").Scan(&rows, &transactions); err != nil {
					t.Fatal(err)
				}
			}
			if count(); transactions != c.transactions {
				t.Errorf("%d rows of %d transactions; want %d transactions", rows, transactions, c.transactions)
			}
			if c.retried == nil {
				return
			}
			g.retrying = true
			var again []string
			for _, item := range c.items {
				again = append(again, g.request(item))
			}
			if fmt.Sprint(again) != fmt.Sprint(c.retried) {
				t.Errorf("the answers to retries %q; want %q", again, c.retried)
			}
			want := 0
			for _, answer := range c.retried {
				if strings.HasPrefix(answer, "200") || strings.HasPrefix(answer, "409") {
					want++
				}
			}
			if strings.HasPrefix(c.items[0], "nokey") {
				want++ // it was carried out again
			}
			if count(); rows != want {
				t.Errorf("%d rows after the retries; want %d: each item once", rows, want)
			}
		})
	}
}
