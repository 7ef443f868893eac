package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain makes the test binary a process of a cell, as the program itself is.
func TestMain(m *testing.M) {
	// In the processes of the cells too: a machine that stalls loses none of the locks.
	rowOf("held-10000").lease = defaultLease
	if runChild() {
		return
	}
	os.Exit(m.Run())
}

func TestQuantilesAreWithinABucket(t *testing.T) {
	var h hist
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.quantile(q); got < want*97/100 || got > want*103/100 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	for _, d := range []time.Duration{0, 1, 31, 32, 63, 64, 12345, time.Hour} {
		if i := bucketOf(d); i < histSize-1 && bucketOf(valueOf(i)) != i {
			t.Errorf("%v is in bucket %d, whose middle %v is not", d, i, valueOf(i))
		}
	}
	if got := new(hist).quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

func TestFairnessAndMedian(t *testing.T) {
	for _, c := range []struct {
		shares []int64
		want   float64
	}{{[]int64{5, 5, 5, 5}, 1}, {[]int64{8, 0, 0, 0}, 0.25}, {[]int64{0, 0}, 0}} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("jain(%v) = %v, want %v", c.shares, got, c.want)
		}
	}
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median of 9, 1, 5 is %v", got)
	}
	if got := median([]float64{9, 1, 5, 6}); got != 5.5 {
		t.Errorf("median of 9, 1, 5, 6 is %v", got)
	}
}

// of makes a result with so many sections in a second.
func of(sections int64) *result {
	return &result{Elapsed: time.Second, Window: time.Second, Shares: []int64{sections}, Waits: new(hist)}
}

func TestTargetsAreMeasuredAgainstTheBestOfTheOthers(t *testing.T) {
	r := newReport("")
	r.add("free-256", interlock, of(300))
	r.add("free-256", redsync, of(100))
	r.add("free-256", redislock, of(150))
	r.add("free-256", rueidislock, nil) // failed
	v, ok := r.judge(faster("free-256", "", 1.5, peers))
	if !ok || !v.met || v.against != redislock || v.ratio != 2 || v.bound != 225 {
		t.Errorf("verdict %+v, %v", v, ok)
	}
	if v, _ := r.judge(faster("free-256", "", 3, peers)); v.met {
		t.Errorf("3 x is met? %+v", v)
	}
	if _, ok := r.judge(faster("free-256", "", 1, []string{channel})); ok {
		t.Error("judged against a library that was not run")
	}
	if _, ok := r.judge(fair("zipf")); ok {
		t.Error("judged a workload that was not run")
	}
}

func TestArguments(t *testing.T) {
	var out, log bytes.Buffer
	if code := run([]string{"-list", "-only", "^zipf/(interlock|channel)$"}, &out, &log); code != 0 {
		t.Errorf("-list ends with %d: %s", code, log.String())
	}
	if got := strings.Fields(out.String()); len(got) != 2 {
		t.Errorf("-list says %q", got)
	}
	for _, bad := range [][]string{{"-rounds", "0"}, {"-only", "("}, {"-time", "0s"}, {"-x"}, {"word"}} {
		if code := run(bad, &out, &log); code != 2 {
			t.Errorf("%q ends with %d", bad, code)
		}
	}
}

// The whole run is promised to take no longer than half an hour.
func TestTheDefaultRunTakesHalfAnHourAtMost(t *testing.T) {
	o, ok := parse(nil, new(bytes.Buffer))
	if !ok {
		t.Fatal("the defaults are wrong")
	}
	var sum time.Duration
	for round := range o.rounds {
		for _, c := range o.plan(round) {
			// Setting up 100,000 locks takes the longest; half a second is the average of
			// cells.
			sum += c.warmUp() + c.Window + 500*time.Millisecond
		}
	}
	if sum > 30*time.Minute || sum < 15*time.Minute {
		t.Errorf("it takes about %v", sum)
	}
	t.Logf("about %v", sum)
}
