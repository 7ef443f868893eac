package redisstore_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// documented is the ACL rule of docs/operations.md, as arguments.
func documented(t *testing.T) []any {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "ACL SETUSER") {
			var args []any
			for _, f := range strings.Fields(line) {
				args = append(args, f)
			}
			return args
		}
	}
	t.Fatal("docs/operations.md has no ACL rule")
	return nil
}

func TestTheDocumentedRightsAreEnough(t *testing.T) {
	srv := redistest.Start(t)
	admin := srv.Client(t)
	if err := admin.Do(t.Context(), documented(t)...).Err(); err != nil {
		t.Fatal(err)
	}
	as := func(o *redis.Options) { o.Username, o.Password = "interlock", "password" }
	share(t, []*core.Locker{newLocker(t, srv.Client(t, as)), newLocker(t, srv.Client(t, as), core.Watchdog(50*time.Millisecond))},
		someKeys(2), 200)
	l := newLocker(t, srv.Client(t, as), core.Watchdog(100*time.Millisecond))
	lease := lock(t, l, "renewed")
	deadline := lease.Deadline()
	redistest.Eventually(t, 5*time.Second, func(context.Context) error {
		if !lease.Deadline().After(deadline) {
			return errors.New("not renewed")
		}
		return nil
	})
	release(t, lease)
	log := admin.Do(t.Context(), "ACL", "LOG").Val()
	if entries, _ := log.([]any); len(entries) != 0 {
		t.Errorf("refused by the server: %v", log)
	}
}

func TestAMissingRightIsNamed(t *testing.T) {
	srv := redistest.Start(t)
	admin := srv.Client(t)
	rule := append(documented(t), "-evalsha", "-eval")
	if err := admin.Do(t.Context(), rule...).Err(); err != nil {
		t.Fatal(err)
	}
	l := newLocker(t, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "interlock", "password" }))
	_, err := l.TryLock(t.Context(), "k")
	wantErr(t, err, core.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), "evalsha") {
		t.Errorf("the error does not name the right: %v", err)
	}
	var redisErr redis.Error
	if !errors.As(err, &redisErr) {
		t.Errorf("the server's error is not in %v", err)
	}
}
