package interlockdebug_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/interlockdebug"
)

func TestThePageShowsTheSizeOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := interlockdebug.NewObserver()
		l := newLocker(t, memstore.New(), core.WithObserver(o))
		group := gather.New(l, gather.Each(func(_ context.Context, _ string, item int) (int, error) {
			time.Sleep(time.Second)
			return item, nil
		}), core.Name("debits"))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { _, _ = group.Do(t.Context(), "k", i) })
			synctest.Wait()
		}
		all.Wait()
		synctest.Wait()
		h := interlockdebug.Handler(l, interlockdebug.Observed(o))
		if r := asJSON(t, h).Rules[0]; r.Batches != 2 || r.Items != 4 || r.LargestBatch != 3 {
			t.Errorf("%+v; want 4 items in 2 batches of up to 3", r)
		}
		if page := ask(h, http.MethodGet, "/", "text/html").Body.String(); !strings.Contains(page, "4 items in 2 batches of up to 3") {
			t.Errorf("%s; want the batches", page)
		}
	})
}
