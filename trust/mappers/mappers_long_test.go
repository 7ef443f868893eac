//go:build long && unix

package mappers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// answer is the answer to a client.
type answer struct {
	status   int
	replayed bool
}

// post sends a request to a handler without a connection. The idempotency key of the request
// is its path.
func post(t *testing.T, h http.Handler, path string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
	r.Header.Set("Idempotency-Key", `"`+path+`"`)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header().Get(idempotency.ReplayedHeader) != ""}
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// The rows of each mapper are there with the stored answer, and are gone where the handler
// fails after it has written them.
func TestRowsOfMappersAreCommittedWithTheAnswer(t *testing.T) {
	db := pgtest.Open(t)
	store, err := pgstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE payments (id bigint PRIMARY KEY, amount bigint NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	id := int64(0)
	for name, insert := range map[string]func(context.Context, payment) error{
		"gorm": func(ctx context.Context, p payment) error { return insertGORM(ctx, orm, p) },
		// A transaction inside is a savepoint: its end does not end the request.
		"gorm-savepoint": func(ctx context.Context, p payment) error {
			if err := insertGORM(ctx, orm, p); err != nil {
				return err
			}
			session, err := sessionGORM(ctx, orm)
			if err != nil {
				return err
			}
			undone := errors.New("undone")
			err = session.Transaction(func(in *gorm.DB) error {
				if err := in.Delete(&p).Error; err != nil {
					return err
				}
				return undone
			})
			if !errors.Is(err, undone) {
				return err
			}
			return nil
		},
		"sqlx": func(ctx context.Context, p payment) error { return insertSQLX(ctx, sqlx.NewDb(db, "pgx"), p) },
		"sqlc": insertSQLC,
		"ent":  insertEnt,
	} {
		for _, fails := range []bool{false, true} {
			id++
			engine := testkit.EngineOn(t, store, idempotency.Transactional(), idempotency.Global(), idempotency.Name(name))
			runs := 0
			h := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs++
				if err := insert(r.Context(), payment{ID: id, Amount: 5}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				var seen int
				if err := db.QueryRowContext(r.Context(), "SELECT count(*) FROM payments WHERE id = $1", id).Scan(&seen); err != nil || seen != 0 {
					t.Errorf("%s: others see %d rows before the commit, %v", name, seen, err)
				}
				if fails {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.WriteHeader(http.StatusCreated)
			}))
			path := "/" + name
			want, rows := http.StatusCreated, 1
			if fails {
				path, want, rows = path+"/fails", http.StatusInternalServerError, 0
			}
			if got := post(t, h, path); got.status != want || got.replayed {
				t.Errorf("%s: %+v", name, got)
			}
			var there int
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM payments WHERE id = $1", id).Scan(&there); err != nil || there != rows {
				t.Errorf("%s, fails: %v: %d rows, want %d, %v", name, fails, there, rows, err)
			}
			if got := post(t, h, path); !fails && (!got.replayed || runs != 1) {
				t.Errorf("%s: %+v after %d runs", name, got, runs)
			}
		}
	}
}
