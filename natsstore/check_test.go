package natsstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// rights are as in docs/consensus.md.
var rights = &natsd.Permissions{
	Publish: &natsd.SubjectPermission{Allow: []string{
		"$KV.locks.>", "$JS.API.DIRECT.GET.KV_locks", "$JS.API.CONSUMER.*.KV_locks.>", "$JS.API.CONSUMER.MSG.NEXT.KV_locks.>", "$JS.API.STREAM.INFO.KV_locks",
	}},
	Subscribe: &natsd.SubjectPermission{Allow: []string{"_INBOX.>"}},
}

func TestTheRightsOfTheDocumentAreEnoughAndAMissingOneIsRefused(t *testing.T) {
	none := &natsd.Permissions{Publish: &natsd.SubjectPermission{Allow: []string{"none"}}, Subscribe: rights.Subscribe}
	s := start(t, func(o *natsd.Options) {
		o.Users = []*natsd.User{{Username: "root", Password: "x"}, {Username: "bank", Password: "x", Permissions: rights}, {Username: "other", Password: "x", Permissions: none}}
	})
	silent := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	if err := Create(t.Context(), connect(t, s, nats.UserInfo("root", "x")), "locks", 1); err != nil {
		t.Fatal(err)
	}
	locker, err := core.New(open(t, connect(t, s, nats.UserInfo("bank", "x"), silent), casstore.Timeout(limit)))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	if err := locker.Do(t.Context(), "account/42", func(context.Context) error { return nil }); err != nil {
		t.Errorf("with the rights of the document: %v", err)
	}
	js := connect(t, s, nats.UserInfo("other", "x"), silent)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Server(js, "locks").Commit(ctx, casstore.Txn{Then: []casstore.Op{put("k", "")}}); !errors.Is(err, casstore.ErrRefused) {
		t.Errorf("without a right: %v; want ErrRefused", err)
	}
	soon, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	found, err := open(t, js).Check(soon)
	if err != nil || len(found) != 1 || !strings.HasPrefix(found[0], driver.NotKnown) {
		t.Errorf("Check without a right: %q, %v; want one sentence that begins with %q", found, err, driver.NotKnown)
	}
}

func TestCheckNamesWhatIsUnsafe(t *testing.T) {
	s := start(t, nil)
	js := connect(t, s)
	check := func(bucket string) string {
		t.Helper()
		store, err := New(js, bucket)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		found, err := store.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, "\n")
	}
	if err := Create(t.Context(), js, "good", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "KV_bad", Subjects: []string{"$KV.bad.>"}, Storage: jetstream.MemoryStorage, MaxAge: time.Hour, MaxMsgSize: 1000,
	}); err != nil {
		t.Fatal(err)
	}
	if found := check("good"); strings.Count(found, "\n") != 0 || !strings.Contains(found, "on 1 members") {
		t.Errorf("a bucket of Create on one member: %q; want that alone", found)
	}
	if found := check("none"); !strings.Contains(found, "there is no bucket none") {
		t.Errorf("no bucket: %q", found)
	}
	found := check("bad")
	for _, want := range []string{"in memory", "discard: old", "max_age", "max_msgs_per_subject", "allow_atomic", "allow_msg_ttl", "allow_direct", "max_msg_size"} {
		if !strings.Contains(found, want) {
			t.Errorf("a bucket with unsafe settings: %q; want %s", found, want)
		}
	}
	slow := connect(t, s, nats.PingInterval(2*time.Minute))
	store := open(t, slow)
	if found, err := store.Check(t.Context()); err != nil || !slices.ContainsFunc(found, func(one string) bool { return strings.Contains(one, "pings every 2m0s") }) {
		t.Errorf("a client with far pings: %q, %v", found, err)
	}
	s.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := store.Check(ctx); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without NATS: %v; want ErrUnavailable", err)
	}
}
