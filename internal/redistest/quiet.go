package redistest

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxKept is how much of the log a test binary keeps, in bytes.
const maxKept = 64 << 10

// kept is a log that is shown only if a test fails: clients and stores warn about
// the faults that tests make, so that without a failure it says nothing.
type kept struct {
	mu      sync.Mutex
	text    []byte
	dropped int // lines beyond maxKept
}

// Write implements io.Writer; each call is a line.
func (k *kept) Write(line []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.text)+len(line) > maxKept {
		k.dropped++
	} else {
		k.text = append(k.text, line...)
	}
	return len(line), nil
}

// Printf implements the logger of go-redis.
func (k *kept) Printf(_ context.Context, format string, args ...any) {
	_, _ = fmt.Fprintf(k, "go-redis: "+format+"\n", args...)
}

// show writes the kept output.
func (k *kept) show(w io.Writer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.text) == 0 {
		return
	}
	_, _ = fmt.Fprintf(w, "redistest: what go-redis and slog.Default() logged in this package:\n%s", k.text)
	if k.dropped > 0 {
		_, _ = fmt.Fprintf(w, "redistest: and %d lines more\n", k.dropped)
	}
}

// keepLogs has go-redis and slog.Default() write to a log that is kept. Package log
// writes to standard error as before, since log.Fatal would end the process with its
// message unseen.
func keepLogs() *kept {
	k := &kept{}
	redis.SetLogger(k)
	slog.SetDefault(slog.New(slog.NewTextHandler(k, nil)))
	log.SetOutput(os.Stderr) // slog.SetDefault has changed both
	log.SetFlags(log.LstdFlags)
	return k
}
