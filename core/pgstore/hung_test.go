package pgstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coredriver "github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
)

// hung is a database that stops answering, with a driver that waits for the answer after the end
// of the context, as lib/pq does.
type hung struct {
	stopped bool
	back    chan struct{} // closed: it answers, and the connections have broken
}

func newHung() *hung { return &hung{back: make(chan struct{})} }

func (h *hung) Connect(context.Context) (sqldriver.Conn, error) { return h, nil }
func (h *hung) Driver() sqldriver.Driver                        { return nil }
func (h *hung) Prepare(string) (sqldriver.Stmt, error)          { return nil, h.answer() }
func (h *hung) Begin() (sqldriver.Tx, error)                    { return h, h.answer() }
func (h *hung) Close() error                                    { return nil }
func (h *hung) Commit() error                                   { return h.answer() }
func (h *hung) Rollback() error                                 { return h.answer() }

func (h *hung) ExecContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Result, error) {
	return sqldriver.ResultNoRows, h.answer()
}

func (h *hung) QueryContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return nil, errors.Join(h.answer(), sqldriver.ErrBadConn)
}

func (h *hung) answer() error {
	if !h.stopped {
		return nil
	}
	<-h.back
	return sqldriver.ErrBadConn
}

// open makes a store on the database, and the transaction of an attempt.
func (h *hung) open(t *testing.T) (*Store, *work) {
	t.Helper()
	db := sql.OpenDB(h)
	s, err := New(db, SweepEvery(-1), Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	unit, err := begin(t.Context(), record.Claim{Store: s, ID: "id", Token: "t", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w := unit.(*work)
	t.Cleanup(func() {
		<-h.back // before it database/sql would wait by a mutex, which stops the time of a bubble
		_ = s.Close()
		w.abort()
		_ = db.Close()
	})
	return s, w
}

// TestACallerIsAnsweredWhileTheDriverWaitsForAServerThatHangs has the server hang for 50 s.
func TestACallerIsAnsweredWhileTheDriverWaitsForAServerThatHangs(t *testing.T) {
	const wait = 10 * time.Second
	soon := func() time.Time { return time.Now().Add(wait) }
	for what, ask := range map[string]func(ctx context.Context, s *Store, w *work) error{
		"the commit of a transaction": func(ctx context.Context, _ *Store, w *work) error {
			_, err := w.Commit(ctx, record.CommitRequest{ID: "id", Token: "t", Deadline: soon()})
			if errors.Is(err, record.ErrRolledBack) {
				t.Errorf("the outcome of a commit is known: %v", err)
			}
			return err
		},
		"Commit": func(ctx context.Context, s *Store, _ *work) error {
			_, err := s.Commit(ctx, record.CommitRequest{Deadline: soon()})
			return err
		},
		"Mark": func(ctx context.Context, s *Store, _ *work) error {
			return s.Mark(ctx, record.MarkRequest{Deadline: soon()})
		},
		"Abandon": func(ctx context.Context, s *Store, _ *work) error {
			return s.Abandon(ctx, record.AbandonRequest{Deadline: soon()})
		},
		"Resolve": func(ctx context.Context, s *Store, _ *work) error {
			return s.Resolve(ctx, record.ResolveRequest{Deadline: soon()})
		},
		"Extend": func(ctx context.Context, s *Store, _ *work) (err error) {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			s.Extend(ctx, make([]record.Extension, 1), func(_ int, outcome error) { err = outcome })
			return err
		},
		"Forget": func(ctx context.Context, s *Store, _ *work) error {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			return s.Forget(ctx, "id")
		},
		"Release of a lock": func(ctx context.Context, s *Store, _ *work) error {
			_, err := s.Release(ctx, coredriver.ReleaseRequest{Key: "k", Owner: "o", Deadline: soon()})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHung()
				s, w := h.open(t)
				h.stopped = true
				time.AfterFunc(50*time.Second, func() { close(h.back) })
				begin := time.Now()
				err := ask(t.Context(), s, w)
				if root := observe.RootCause(err); root == coredriver.ErrUnavailable { //nolint:errorlint // the root itself
					t.Errorf("the log of %v says no more than %v", err, root)
				}
				if took := time.Since(begin); took > wait+time.Second || !errors.Is(err, coredriver.ErrUnavailable) {
					t.Errorf("answered after %v with %v; want %v at the latest after %v", took, err, coredriver.ErrUnavailable, wait)
				}
			})
		})
	}
}

// A rollback cannot be in a bubble: database/sql waits by a mutex until the statement has ended.
func TestARollbackDoesNotWaitForAServerThatHangs(t *testing.T) {
	t.Parallel()
	h := newHung()
	_, w := h.open(t)
	h.stopped = true
	// The server is back when the rollback has returned. If that waits for the server, the
	// rollback never returns, and the test is ended by its time limit.
	defer close(h.back)
	if err := w.Rollback(t.Context()); err != nil {
		t.Errorf("the rollback returns %v", err)
	}
}
