package interlockdebug

import "time"

// bounds are the upper ends of the buckets of a histogram. The last bucket has none.
var bounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond,
	500 * time.Millisecond, 2500 * time.Millisecond, 10 * time.Second,
}

// histogram counts durations.
type histogram struct {
	buckets [len(bounds) + 1]int64
	sum     time.Duration
}

func (h *histogram) add(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i]++
	h.sum += d
}

// snapshot is the histogram as the page shows it.
func (h *histogram) snapshot() Latency {
	l := Latency{SumSeconds: h.sum.Seconds()}
	for i, n := range h.buckets {
		b := Bucket{Count: n}
		if i < len(bounds) {
			b.UpToSeconds = bounds[i].Seconds()
		}
		l.Count += n
		l.Buckets = append(l.Buckets, b)
	}
	return l
}
