package redisstore_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestALockerHasAnEntryThatNamesItsProcess(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store, err := redisstore.New(rdb, redisstore.Prefix("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	lost := make(chan observe.Loss, 1)
	l, err := core.New(store, core.Service("bank", "v1"), core.OnLost(func(loss core.Loss) { lost <- loss }))
	if err != nil {
		t.Fatal(err)
	}
	lease := lock(t, l, "k")
	var names []string
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		names, err = rdb.Keys(ctx, "app:locker:*").Result()
		if err == nil && len(names) != 1 {
			err = errors.New("no entry")
		}
		return err
	})
	entry := rdb.HGetAll(t.Context(), names[0]).Val()
	host, _ := os.Hostname()
	if entry["host"] != host || entry["pid"] != strconv.Itoa(os.Getpid()) || entry["service"] != "bank" ||
		entry["version"] != "v1" || entry["protocol"] != "1" || len(entry) != 7 {
		t.Errorf("%q", entry)
	}
	for _, field := range []string{"started", "seen"} {
		ms, err := strconv.ParseInt(entry[field], 10, 64)
		if age := time.Since(time.UnixMilli(ms)); err != nil || age < -time.Second || age > time.Minute {
			t.Errorf("%s is %q: %v ago, %v", field, entry[field], age, err)
		}
	}
	if ttl := rdb.PTTL(t.Context(), names[0]).Val(); ttl <= 30*time.Second || ttl > time.Minute {
		t.Errorf("it stays for %v; want a minute", ttl)
	}

	// The id is what a loss has before the colon.
	if err := rdb.Del(t.Context(), "app:{k}").Err(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, lease.Check(t.Context()), core.ErrLost)
	id, _, _ := strings.Cut((<-lost).Owner, ":")
	if names[0] != "app:locker:{"+id+"}" {
		t.Errorf("the entry is %q, and the locker %q", names[0], id)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rdb.Exists(t.Context(), names[0]).Val(); n != 0 {
		t.Error("the entry is still there after Close")
	}
}

func TestAnAnnouncementIsOneCall(t *testing.T) {
	srv := redistest.Start(t)
	store := newStore(t, srv.Client(t))
	a := driver.Announcement{ID: strings.Repeat("a", 32), Host: "h", PID: 1, Started: time.Now(), TTL: time.Minute}
	wantErr(t, store.Announce(t.Context(), a), nil) // the server learns the script
	srv.ResetStats(t)
	for range 10 {
		wantErr(t, store.Announce(t.Context(), a), nil)
	}
	calls := srv.Calls(t)
	if calls["evalsha"] != 10 || calls["eval"] != 0 || calls["hset"] != 10 || calls["pexpire"] != 10 || calls["time"] != 10 {
		t.Errorf("ten announcements were %v", calls)
	}
}

// Memory that is full, and a right that is missing, leave no entry that never ends.
func TestAnEntryThatCannotEndIsNotLeft(t *testing.T) {
	srv := redistest.Start(t)
	store := newStore(t, srv.Client(t))
	a := driver.Announcement{ID: strings.Repeat("a", 32), Host: "h", TTL: time.Minute}
	admin := srv.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "-pexpire").Err(); err != nil {
		t.Fatal(err)
	}
	err := store.Announce(t.Context(), a)
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "+pexpire") {
		t.Errorf("%v; want one that names the right", err)
	}
	if n := admin.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}
