//go:build long

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// BenchmarkLs lists 100,000 locks while another client sets and gets keys. It reports that
// client's p99 without ls and during ls, and the memory of ls.
//
//	go test -tags=integration,long -run=- -bench=BenchmarkLs -benchtime=1x ./cmd/interlock
func BenchmarkLs(b *testing.B) {
	const n = 100_000
	srv := redistest.Start(b)
	rdb := srv.Client(b)
	id := strings.Repeat("a", 32)
	for from := 0; from < n; from += 1000 {
		_, err := rdb.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			for i := from; i < from+1000; i++ {
				name := fmt.Sprintf("interlock:{account/%d}", i)
				p.HSet(b.Context(), name, fmt.Sprintf("%s:%d", id, i), time.Now().UnixMicro(), "q", strings.Repeat("b", 32))
				p.PExpire(b.Context(), name, time.Hour)
				p.Set(b.Context(), name+":fence", time.Now().UnixMicro(), time.Hour)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	rdb.HSet(b.Context(), "interlock:locker:{"+id+"}", "host", "h", "pid", 1)
	tool := b.TempDir() + "/interlock"
	if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for b.Loop() {
		idle := p99(b, rdb, func(ctx context.Context) { <-ctx.Done() }, 5*time.Second)
		var memory int64
		var lines int
		began := time.Now()
		beside := p99(b, rdb, func(context.Context) {
			cmd := exec.CommandContext(b.Context(), "chrt", "--idle", "0", tool, "-addr", srv.Addr(), "ls")
			out, err := os.Create(b.TempDir() + "/out")
			if err != nil {
				b.Error(err)
				return
			}
			defer out.Close()
			cmd.Stdout = out
			if err := cmd.Run(); err != nil {
				b.Error(err)
				return
			}
			if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
				memory = usage.Maxrss
			}
			text, _ := os.ReadFile(out.Name())
			lines = strings.Count(string(text), "\n")
		}, time.Hour)
		if lines < n {
			b.Errorf("%d lines for %d locks", lines, n)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/ls")
		b.ReportMetric(float64(idle.Microseconds()), "µs-p99-idle")
		b.ReportMetric(float64(beside.Microseconds()), "µs-p99-beside")
		b.ReportMetric(float64(memory), "KiB-max")
	}
}

// p99 measures commands until the parallel work has ended.
func p99(b *testing.B, rdb *redis.Client, beside func(context.Context), within time.Duration) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), within)
	defer cancel()
	done := make(chan struct{})
	go func() { beside(ctx); close(done) }()
	var took []time.Duration
	for {
		select {
		case <-done:
			slices.Sort(took)
			return took[len(took)*99/100]
		default:
		}
		began := time.Now()
		if err := rdb.Set(b.Context(), "other", len(took), 0).Err(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		time.Sleep(200 * time.Microsecond)
	}
}
