package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/reason"
)

// serve runs a handler under a rule, for a caller that holds account/42 with token 100.
func serve(t *testing.T, rule *core.Guard, handler func(ctx context.Context)) reason.Reason {
	t.Helper()
	refusal := rule.Do(t.Context(), &adapter.Message{Metadata: map[string]string{core.FencesHeader: "account/42=100"}},
		func(ctx context.Context) bool { handler(ctx); return true })
	if refusal != nil {
		return refusal.Reason
	}
	return ""
}

func work(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE accounts")
	return err
}

// claims are the statements of a database, each with the key and the token that it claims.
func claims(said []string) (all []string) {
	for _, s := range said {
		if strings.HasPrefix(s, "INSERT") {
			s = "claim" + s[strings.Index(s, " ["):]
		}
		all = append(all, s)
	}
	return all
}

// The claim in front refuses early. Between it and the transaction another caller can come, so
// the transaction of the handler claims again.
func TestAHandlerClaimsTheTokensOfItsCallerInItsTransaction(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	fences := fencing.Table{}
	rule := core.Fenced("account/42", fences.Fence(db))
	why := serve(t, rule, func(ctx context.Context) {
		if said := claims(f.said()); !slices.Equal(said, []string{"begin", "claim [account/42] [100]", "commit"}) {
			t.Errorf("before the handler: %q; want the claim, committed", said)
		}
		if err := fences.InTx(ctx, db, nil, nil, work); err != nil {
			t.Error(err)
		}
	})
	want := []string{"begin", "claim [account/42] [100]", "commit", "begin", "claim [account/42] [100]", "UPDATE accounts", "commit"}
	if said := claims(f.said()); why != "" || !slices.Equal(said, want) {
		t.Errorf("%q, %q; want %q", why, said, want)
	}
}

// A handler may hold a lock of its own service as well.
func TestATransactionClaimsTheLocksOfTheCallerAndOfTheService(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	_, lease := lock(t)
	rule := core.Fenced("account/42", func(context.Context, []core.Fence) error { return nil })
	why := serve(t, rule, func(ctx context.Context) {
		if err := (fencing.Table{}).InTx(ctx, db, lease, nil, work); err != nil {
			t.Error(err)
		}
	})
	for _, claim := range []string{"claim [account/42] [100]", "claim [" + lease.Keys()[0] + "]"} {
		if said := claims(f.said()); why != "" || !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, claim) }) {
			t.Errorf("%q, %q; want %q", why, said, claim)
		}
	}
}

func TestATableRefusesAnOutdatedCaller(t *testing.T) {
	broken := errors.New("broken")
	for want, f := range map[reason.Reason]*fakeDB{
		reason.StaleToken:  {latest: 101},
		reason.Unavailable: {fails: map[string]error{"commit": broken}},
	} {
		db := f.open()
		defer db.Close()
		why := serve(t, core.Fenced("account/42", fencing.Table{}.Fence(db)), func(context.Context) { t.Errorf("%s: the handler ran", want) })
		if why != want {
			t.Errorf("refused with %q; want %q", why, want)
		}
	}
}

// A caller can have claimed the fence in a transaction that it has not committed: a claim that waits
// for its end waits for the caller, which waits for the answer.
func TestAClaimDoesNotWaitForTheOpenTransactionOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := (&fakeDB{locked: true}).open()
		defer db.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := (fencing.Table{}).Fence(db)(ctx, []core.Fence{{Key: "account/42", Token: 100}})
		if took := time.Since(begin); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "commit before the call") || took > 2*time.Second {
			t.Errorf("%v after %v; want an error after 2 s that names the transaction of the caller", err, took)
		}
	})
}

// The transaction of the caller may have locked the row after the rule has claimed the fence.
func TestAClaimInTheHandlerDoesNotWaitForTheOpenTransactionOfItsCaller(t *testing.T) {
	for name, claim := range map[string]func(context.Context, *sql.DB) error{
		"InTx": func(ctx context.Context, db *sql.DB) error { return (fencing.Table{}).InTx(ctx, db, nil, nil, work) },
		"Column": func(ctx context.Context, db *sql.DB) error {
			return fencing.InTx(ctx, db, nil, nil, func(ctx context.Context, tx *sql.Tx) error {
				return fencing.Column{Table: "accounts", ID: "id", Fence: "fence"}.Claim(ctx, tx, 42, core.Fences(ctx)[0].Token)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := (&fakeDB{locked: true}).open()
				defer db.Close()
				rule := core.Fenced("account/42", func(context.Context, []core.Fence) error { return nil })
				why := serve(t, rule, func(ctx context.Context) {
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					begin := time.Now()
					err := claim(ctx, db)
					if took := time.Since(begin); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "commit before the call") || took > 2*time.Second {
						t.Errorf("%v after %v; want an error after 2 s that names the transaction of the caller", err, took)
					}
				})
				if why != "" {
					t.Errorf("refused with %q, want none", why)
				}
			})
		})
	}
}

// Without a lease in the call the lease of the context counts, and its loss.
func TestInTxFindsTheLeaseOfItsContext(t *testing.T) {
	f := &fakeDB{}
	db := f.open()
	defer db.Close()
	s, lease := lock(t)
	err := (fencing.Table{}).InTx(lease.Context(), db, nil, nil, func(context.Context, *sql.Tx) error {
		for _, key := range lease.Keys() {
			s.Expire(key)
		}
		return nil
	})
	if !errors.Is(err, core.ErrLost) || slices.Contains(f.said(), "commit") {
		t.Errorf("%v, %q; want %v, and no commit", err, f.said(), core.ErrLost)
	}
}
