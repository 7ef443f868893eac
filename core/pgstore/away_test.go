package pgstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
)

// away is a proxy that accepts connections and ends them.
type away struct{ dials atomic.Int64 }

func (p *away) Driver() sqldriver.Driver { return nil }

func (p *away) Connect(context.Context) (sqldriver.Conn, error) {
	p.dials.Add(1)
	time.Sleep(time.Millisecond)
	return nil, io.EOF
}

func TestCallersOfAnAbsentServerShareABoundedRateOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &away{}
		db := sql.OpenDB(proxy)
		defer func() { _ = db.Close() }()
		s, err := New(db, SweepEvery(-1), Logger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		l, err := core.New(s)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		var failed atomic.Int64
		for i := range 400 {
			callers.Go(func() {
				for ctx.Err() == nil {
					if _, err := l.Lock(ctx, fmt.Sprint("k", i)); ctx.Err() == nil && !errors.Is(err, core.ErrUnavailable) {
						t.Errorf("%v; want ErrUnavailable", err)
					}
					failed.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		callers.Wait()
		if calls, dials := failed.Load(), proxy.dials.Load(); dials < 100 || dials > 600 {
			t.Errorf("%d dials in 10 s of %d calls; want about 50 a second", dials, calls)
		}
	})
}
