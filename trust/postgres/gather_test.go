//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// carryOut brings items for one key while its lock is held, so that they are one batch, and returns
// the errors by item.
func carryOut(t *testing.T, section gather.Section[int, int], items ...int) []error {
	t.Helper()
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }()
	lease, err := locker.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	sizes := 0
	group := gather.New(locker, func(ctx context.Context, key string, batch []int) ([]int, error) {
		sizes = len(batch)
		return section(ctx, key, batch)
	}, gather.Most(len(items)))
	errs := make([]error, len(items))
	var all sync.WaitGroup
	brought := make(chan struct{}, len(items))
	for i, item := range items {
		all.Go(func() {
			ctx := announced{t.Context(), sync.OnceFunc(func() { brought <- struct{}{} })}
			_, errs[i] = group.Do(ctx, "k", item)
		})
		<-brought
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	all.Wait()
	if sizes != len(items) {
		t.Errorf("a batch of %d items; want %d", sizes, len(items))
	}
	return errs
}

// announced is a context that announces that its goroutine is about to wait.
type announced struct {
	context.Context
	announce func()
}

func (a announced) Done() <-chan struct{} {
	a.announce()
	return a.Context.Done()
}

func TestOneBadItemDoesNotUndoTheOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	execute(t, db, "CREATE TABLE gathered (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, low int CHECK (low < 100), txid bigint DEFAULT txid_current())")
	execute(t, db, "INSERT INTO gathered VALUES (7, 7)")
	errRefused := errors.New("refused by the item")
	section := gather.InTx(db, nil, func(ctx context.Context, tx *sql.Tx, _ string, n int) (int, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO gathered (n, low) VALUES ($1, $1)", n); err != nil {
			return 0, err
		}
		if n < 0 {
			return 0, errRefused // after its statement
		}
		return n, nil
	})
	for name, c := range map[string]struct {
		items        []int
		bad          int // the item that fails
		transactions int
		want         string
	}{
		"none":                          {[]int{11, 12, 13, 14, 15}, 0, 1, ""},
		"a statement fails":             {[]int{21, 22, 123, 24, 25}, 123, 1, "23514"},
		"the item returns an error":     {[]int{-31, 32, 33, 34, 35}, -31, 1, "refused"},
		"the commit fails for one item": {[]int{41, 42, 43, 7, 45}, 7, 3, "23505"}, // [41 42], [43] and [45]
		"a batch of one fails":          {[]int{151}, 151, 0, "23514"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := carryOut(t, section, c.items...)
			var good []string
			for i, n := range c.items {
				switch {
				case n != c.bad && errs[i] != nil:
					t.Errorf("the item %d: %v; want it carried out", n, errs[i])
				case n == c.bad && (errs[i] == nil || !strings.Contains(fmt.Sprint(errs[i]), c.want) || errors.Is(errs[i], gather.ErrUnknown)):
					t.Errorf("the item %d: %v; want an error with %q that says that it was not carried out", n, errs[i], c.want)
				case n != c.bad:
					good = append(good, fmt.Sprint(n))
				}
			}
			var rows, transactions int
			query := "SELECT count(*), count(DISTINCT txid) FROM gathered WHERE n IN (" + strings.Join(append(good, "NULL"), ",") + ")"
			if err := db.QueryRowContext(t.Context(), query).Scan(&rows, &transactions); err != nil {
				t.Fatal(err)
			}
			if rows != len(good) || transactions != c.transactions {
				t.Errorf("%d rows of %d transactions; want %d of %d", rows, transactions, len(good), c.transactions)
			}
		})
	}
}
