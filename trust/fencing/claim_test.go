//go:build long && unix

package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// claim is a transaction that does nothing else.
type claim func(ctx context.Context, tx *sql.Tx, token int64) error

var claims = map[string]claim{
	"table":  func(ctx context.Context, tx *sql.Tx, token int64) error { return fences.Claim(ctx, tx, "k", token) },
	"column": func(ctx context.Context, tx *sql.Tx, token int64) error { return accounts.Claim(ctx, tx, "42", token) },
}

func TestOnlyTheLatestTokenClaims(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *sql.DB) {
		for name, claim := range claims {
			t.Run(name, func(t *testing.T) {
				with := func(token int64) error {
					return inTx(t.Context(), db, sql.LevelDefault, func(tx *sql.Tx) error { return claim(t.Context(), tx, token) })
				}
				if err := with(5); err != nil {
					t.Fatalf("the first: %v", err)
				}
				if err := with(5); err != nil {
					t.Errorf("its holder again: %v", err)
				}
				wantStale(t, with(4), 4, 5)
				// As large as real ones are.
				now := time.Now().UnixMicro()
				if err := with(now); err != nil {
					t.Errorf("the next: %v", err)
				}
				wantStale(t, with(now-1), now-1, now)
				if err := with(now + 1); err != nil {
					t.Errorf("the next but one: %v", err)
				}
			})
		}
		wantBalance(t, db, 100)
	})
}

// Fences are by whole keys, compared byte by byte.
func TestKeysThatLookAlikeHaveFencesOfTheirOwn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *sql.DB) {
		keys := []string{
			"k", "K", "k ", "", "'; DROP TABLE accounts --", "k%", "%2F", "ä", "a\u0308", "\u00e4b", strings.Repeat("k", 512),
			"\x00", "k\x00", "\xff", `\000`, `\\000`, `\377`, strings.Repeat("\xff", 512), // a text has neither zero bytes nor half letters
		}
		claim := func(key string, token int64) error {
			return inTx(t.Context(), db, sql.LevelDefault, func(tx *sql.Tx) error { return fences.Claim(t.Context(), tx, key, token) })
		}
		token := func(i int) int64 { return int64(len(keys) - i + 1) } // each smaller than those before it
		for i, key := range keys {
			if err := claim(key, token(i)); err != nil {
				t.Errorf("%q: %v", key, err)
			}
		}
		for i, key := range keys {
			wantStale(t, claim(key, 1), 1, token(i))
		}
		wantBalance(t, db, 100)
	})
}

// Many claim a key at the same moment for the first time. A caller that gets it has a
// larger token than all callers before.
func TestFirstClaimsAtOnce(t *testing.T) {
	t.Parallel()
	levels := map[string][]sql.IsolationLevel{
		"PostgreSQL": {sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		"SQLite":     {sql.LevelDefault},
	}
	for name, open := range databases {
		for _, level := range levels[name] {
			t.Run(fmt.Sprint(name, " ", level), func(t *testing.T) {
				db := open(t)
				prepare(t, db)
				for round := range 10 {
					firstClaims(t, db, level, fmt.Sprint("k", round))
				}
			})
		}
	}
}

func firstClaims(t *testing.T, db *sql.DB, level sql.IsolationLevel, key string) {
	const n = 8
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		granted []int64 // while the fence is locked, so in its order
		refused int
	)
	start := make(chan struct{})
	for _, i := range rand.Perm(n) {
		token := int64(i + 1)
		wg.Go(func() {
			<-start
			for {
				err := inTx(t.Context(), db, level, func(tx *sql.Tx) error {
					if err := fences.Claim(t.Context(), tx, key, token); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					granted = append(granted, token)
					return nil
				})
				var stale *fencing.StaleError
				switch {
				case sqlState(err) == serializationFailure && level > sql.LevelReadCommitted:
					continue // says nothing about the token
				case errors.As(err, &stale) && stale.Latest > token:
					mu.Lock()
					refused++
					mu.Unlock()
				case err != nil:
					t.Errorf("token %d: %v", token, err)
				}
				return
			}
		})
	}
	close(start)
	wg.Wait()
	if !slices.IsSorted(granted) || len(granted)+refused != n || latest(t, db, key) != n {
		t.Errorf("granted %v, refused %d, the fence is %d", granted, refused, latest(t, db, key))
	}
}

// serializationFailure is the SQLSTATE of a transaction that has to be tried again.
const serializationFailure = "40001"

// sqlState is the code of a PostgreSQL error, as its drivers tell it.
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// The second of two transactions of a key waits for the first, in every isolation level, and
// then either sees its writes or is refused.
func TestAClaimWaitsForTheTransactionBeforeIt(t *testing.T) {
	// Not in parallel with other tests: it mistakes any waiting transaction for its own.
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for name, claim := range claims {
			for _, second := range []int64{6, 4} {
				t.Run(fmt.Sprintf("%v, %s, token %d after 5", level, name, second), func(t *testing.T) {
					db := pgtest.Open(t)
					prepare(t, db)
					debit := func(tx *sql.Tx, token int64, meanwhile func()) error {
						if err := claim(t.Context(), tx, token); err != nil {
							return err
						}
						n, err := balance(t.Context(), tx)
						if err != nil {
							return err
						}
						meanwhile()
						return setBalance(t.Context(), tx, n-10)
					}
					result, failures := make(chan error, 1), 0
					err := inTx(t.Context(), db, level, func(tx *sql.Tx) error {
						return debit(tx, 5, func() {
							go func() {
								for {
									err := inTx(t.Context(), db, level, func(tx *sql.Tx) error { return debit(tx, second, func() {}) })
									if sqlState(err) != serializationFailure {
										result <- err
										return
									}
									failures++
								}
							}()
							awaitBlocked(t, db)
						})
					})
					if err != nil {
						t.Errorf("the first: %v", err)
					}
					err = <-result
					if second < 5 {
						wantStale(t, err, second, 5)
						wantBalance(t, db, 90)
					} else {
						if err != nil {
							t.Errorf("the second: %v", err)
						}
						wantBalance(t, db, 80)
					}
					if want := level > sql.LevelReadCommitted; (failures > 0) != want {
						t.Errorf("%d serialization failures", failures)
					}
				})
			}
		}
	}
}

// awaitBlocked waits until a transaction of this test waits for another's lock.
func awaitBlocked(t *testing.T, db *sql.DB) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		var n int
		err := db.QueryRowContext(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("no transaction waits")
		}
		return err
	})
}

// The work is done between two transactions, for it takes long. Two holders have
// both read when the first of them writes: it was paused, and its lock has passed
// to the other.
func TestOnlyAClaimBeforeTheReadKeepsBothUpdates(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *sql.DB) {
		none := func(context.Context, *sql.Tx, int64) error { return nil }
		for name, c := range map[string]struct {
			beforeRead, beforeWrite claim
			lost                    bool // an update that was acknowledged
		}{
			"no fence":             {none, none, true},
			"checked when written": {none, claims["table"], true},
			"claimed when read":    {claims["table"], claims["table"], false},
			"claimed in the row":   {claims["column"], claims["column"], false},
		} {
			t.Run(name, func(t *testing.T) {
				if _, err := db.ExecContext(t.Context(), "DELETE FROM interlock_fence"); err != nil {
					t.Fatal(err)
				}
				if _, err := db.ExecContext(t.Context(), "UPDATE accounts SET balance = 100, fence = 0"); err != nil {
					t.Fatal(err)
				}
				read := func(token int64) (n int64) {
					err := inTx(t.Context(), db, sql.LevelDefault, func(tx *sql.Tx) (err error) {
						if err = c.beforeRead(t.Context(), tx, token); err != nil {
							return err
						}
						n, err = balance(t.Context(), tx)
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					return n
				}
				write := func(token, n int64) error {
					return inTx(t.Context(), db, sql.LevelDefault, func(tx *sql.Tx) error {
						if err := c.beforeWrite(t.Context(), tx, token); err != nil {
							return err
						}
						return setBalance(t.Context(), tx, n)
					})
				}
				paused, successor := read(1), read(2)
				late := write(1, paused-10)
				if err := write(2, successor-1); err != nil {
					t.Fatal(err)
				}
				if c.lost && late != nil {
					t.Errorf("the late write is refused: %v; the test shows nothing", late)
				}
				if !c.lost {
					wantStale(t, late, 1, 2)
				}
				wantBalance(t, db, 99)
			})
		}
	})
}
