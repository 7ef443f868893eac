package redisstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// firstFingerprint is the fingerprint of the first version, for as long as there
// are processes, or records, of that version.
func firstFingerprint(p payment) string {
	h := sha256.New()
	for _, s := range []string{p.protocol, "POST", p.path, p.query} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(s)))
		h.Write([]byte(s))
	}
	h.Write([]byte(p.body))
	return string(h.Sum(nil))
}

// onlyRecord returns the name of the one record that there is.
func onlyRecord(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	keys := rdb.Keys(t.Context(), "interlock:idem:*").Val()
	if len(keys) != 1 {
		t.Fatalf("records %q", keys)
	}
	return keys[0]
}

func TestARecordOfTheFirstVersionIsReplayedForItsRequest(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	engine := newEngine(t, store)
	p := pay("k")
	p.host = "eu.bank.example"
	ran := 0
	handler := endpoint.Handler{Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		ran++
		return endpoint.Response{Status: 201}, true
	}}
	if v := engine.Do(t.Context(), p, handler); v.Refusal != nil || v.Replay != nil {
		t.Fatalf("%+v", v)
	}
	record := onlyRecord(t, rdb)
	// A process of the first version compares f, so it replays what this one stored.
	if f := rdb.HGet(t.Context(), record, "f").Val(); f != firstFingerprint(p) {
		t.Errorf("f is %x; the first version makes %x", f, firstFingerprint(p))
	}
	other := p
	other.host = "us.bank.example"
	if v := engine.Do(t.Context(), other, handler); v.Refusal == nil || v.Refusal.Reason != reason.KeyReused {
		t.Errorf("another host: %+v", v)
	}
	// A record of the first version has no f2.
	if n := rdb.HDel(t.Context(), record, "f2").Val(); n != 1 {
		t.Fatal("there is no f2")
	}
	if v := engine.Do(t.Context(), p, handler); v.Replay == nil {
		t.Errorf("an old record, the same request: %+v", v)
	}
	other = p
	other.body = `{"amount":2}`
	if v := engine.Do(t.Context(), other, handler); v.Refusal == nil || v.Refusal.Reason != reason.KeyReused {
		t.Errorf("an old record, another body: %+v", v)
	}
	if ran != 1 {
		t.Errorf("%d runs", ran)
	}
}
