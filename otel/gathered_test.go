package otellock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
)

func TestBatchesAreMeasuredByTheirItemsAndTheirTimeInTheQueue(t *testing.T) {
	inWorld(t, func(w *world) {
		group := gather.New(w.locker, gather.Each(func(_ context.Context, _ string, item int) (int, error) {
			time.Sleep(time.Second)
			return item, nil
		}), core.Name("debits"))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { _, _ = group.Do(w.ctx, "k", i) })
			synctest.Wait()
		}
		all.Wait()
		synctest.Wait()
		metrics := w.metrics()
		items := metrics["interlock.batch.items"].Data.(metricdata.Histogram[int64]).DataPoints[0]
		queued := metrics["interlock.batch.queue.duration"].Data.(metricdata.Histogram[float64]).DataPoints[0]
		if items.Count != 2 || items.Sum != 4 || queued.Count != 2 || queued.Sum != 1 {
			w.Errorf("%d batches of %d items, %d after %v s; want 2 of 4, and 2 after 1 s in all", items.Count, items.Sum, queued.Count, queued.Sum)
		}
	})
}
