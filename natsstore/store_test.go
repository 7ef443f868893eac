package natsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

func TestNewAndCreateRefuseWhatCannotWork(t *testing.T) {
	if _, err := New(nil, "locks"); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("New without a client: %v; want ErrConfig", err)
	}
	js := connect(t, start(t, nil))
	if _, err := New(js, "a.b"); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("New on the bucket a.b: %v; want ErrConfig", err)
	}
	if _, err := New(js, "locks", casstore.Prefix("")); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("New with an empty prefix: %v; want ErrConfig", err)
	}
	if err := Create(t.Context(), js, "", 1); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("Create without a name: %v; want ErrConfig", err)
	}
	for range 2 {
		if err := Create(t.Context(), js, "locks", 1); err != nil {
			t.Errorf("Create, also of a bucket that there is: %v", err)
		}
	}
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "other"}); err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), js, "other", 1); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "allow_atomic") {
		t.Errorf("Create of a bucket with other settings: %v; want ErrConfig, and what differs", err)
	}
}

func TestErrorsSayWhetherATransactionMayBeExecuted(t *testing.T) {
	for code, want := range map[int]error{
		10071: errDiffers, 10164: errDiffers,
		10210: driver.ErrNotReady, 10167: driver.ErrNotReady, 10002: driver.ErrNotReady, 10023: driver.ErrNotReady,
		10028: driver.ErrNotReady, 10047: driver.ErrNotReady,
		10174: casstore.ErrRefused, 10199: casstore.ErrRefused, 10166: casstore.ErrRefused, 10165: casstore.ErrRefused,
		10054: casstore.ErrRefused, 10097: casstore.ErrRefused, 10109: casstore.ErrRefused,
		10077: casstore.ErrSettled,
		10176: nil, // an incomplete batch: another leader may have all of it
		10009: nil, 0: nil,
	} {
		got := explain(code, "text")
		for _, kind := range []error{errDiffers, driver.ErrNotReady, casstore.ErrRefused, casstore.ErrSettled} {
			if errors.Is(got, kind) != errors.Is(want, kind) {
				t.Errorf("%d: %v; want %v", code, got, want)
			}
		}
	}
	none := nats.NewMsg("")
	none.Header.Set("Status", "503")
	if _, err := acked(none); !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("no leader: %v; want ErrNotReady", err)
	}
	for _, text := range []string{"x", `{"stream":"KV_locks"}`} {
		if _, err := acked(&nats.Msg{Data: []byte(text)}); err == nil || errors.Is(err, driver.ErrNotReady) {
			t.Errorf("the answer %q: %v; want an error that does not say whether the transaction was executed", text, err)
		}
	}
}

// commit commits a transaction, which must not fail.
func commit(t *testing.T, s casstore.Server, txn casstore.Txn) casstore.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	answer, err := s.Commit(ctx, txn)
	if err != nil {
		t.Fatalf("Commit(%+v): %v", txn, err)
	}
	return answer
}

func put(name, value string) casstore.Op { return casstore.Op{Name: name, Value: value} }

// NATS answers with 1,024 messages at most.
func TestALongListIsWhole(t *testing.T) {
	s := Server(connect(t, bucket(t)), "locks")
	const entries, each = 1_500, 60
	for i := 0; i < entries; i += each {
		var txn casstore.Txn
		for n := range each {
			txn.Then = append(txn.Then, put(fmt.Sprintf("l/%04d", i+n), ""))
		}
		commit(t, s, txn)
	}
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("m/a", ""), put("n", "1"), {Name: "l/0003", Delete: true}}})
	for _, late := range []bool{false, true} {
		answer := commit(t, s, casstore.Txn{Read: []string{"n", "none"}, List: []casstore.Range{{Prefix: "l/"}, {Prefix: "m/"}, {Prefix: "l/", After: "l/0999", Limit: 500}}, Late: late})
		if len(answer.Lists[0]) != entries-1 || len(answer.Lists[1]) != 1 || answer.Read[0].Value != "1" || answer.Read[1].There() {
			t.Errorf("late %v: %d and %d entries, %+v; want %d and 1, and the entry n alone", late, len(answer.Lists[0]), len(answer.Lists[1]), answer.Read, entries-1)
		}
		page := answer.Lists[2]
		if len(page) != 500 || page[0].Name != "l/1000" || !slices.IsSortedFunc(page, func(a, b casstore.Entry) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("late %v: a page of %d entries; want 500 after l/0999 in their order", late, len(page))
		}
	}
	first := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Watch(ctx, "l/", func(changes []casstore.Change) { first <- len(changes); cancel() }) }()
	select {
	case n := <-first:
		if n != entries-1 {
			t.Errorf("a watch begins with %d entries; want %d", n, entries-1)
		}
	case <-time.After(limit):
		t.Error("a watch of many entries reports nothing")
	}
}

// NATS says so before it executes anything, so the batch is sent again.
func TestBatchesAboveTheLimitOfTheStreamAreSentAgain(t *testing.T) {
	s := start(t, func(o *natsd.Options) { o.JetStreamLimits.MaxBatchInflightPerStream = 1 })
	if err := Create(t.Context(), connect(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	const processes, each = 8, 20
	var all sync.WaitGroup
	for i := range processes {
		server := Server(connect(t, s), "locks")
		all.Go(func() {
			for n := range each {
				a, b := fmt.Sprintf("%d/%d/a", i, n), fmt.Sprintf("%d/%d/b", i, n)
				answer, err := server.Commit(t.Context(), casstore.Txn{If: []casstore.Condition{{Name: a}}, Then: []casstore.Op{put(a, ""), put(b, "")}})
				if err != nil || !answer.Done {
					t.Errorf("%+v, %v; want that it is done", answer, err)
				}
			}
		})
	}
	all.Wait()
	// A batch that another client leaves without an end takes the only place for ten seconds.
	nc := connect(t, s).Conn()
	m := nats.NewMsg("$KV.locks.x")
	m.Header.Set("Nats-Batch-Id", "left")
	m.Header.Set("Nats-Batch-Sequence", "1")
	if _, err := nc.RequestMsg(m, limit); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	server := Server(connect(t, s), "locks")
	if _, err := server.Commit(ctx, casstore.Txn{Then: []casstore.Op{put("p", ""), put("q", "")}}); !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("no room for a batch: %v; want ErrNotReady, since nothing was executed", err)
	}
}

// A marker ends after a time. Whoever has seen it would compare its sequence for ever.
func TestAnEntryIsWrittenAgainAfterItsMarkerHasEnded(t *testing.T) {
	js := connect(t, bucket(t))
	s := Server(js, "locks")
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("k", "1")}})
	commit(t, s, casstore.Txn{Then: []casstore.Op{{Name: "k", Delete: true}}})
	stream, err := js.Stream(t.Context(), "KV_locks")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"$KV.locks.k", "$KV.locks.=gone.k"} {
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		if err != nil || m.Header.Get(headerTTL) != markerLife.String() {
			t.Fatalf("%s: %+v, %v; want a marker that ends after %v", subject, m, err, markerLife)
		}
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.locks.k")); err != nil { // as its end does
		t.Fatal(err)
	}
	absent := []casstore.Condition{{Name: "k"}}
	if answer := commit(t, s, casstore.Txn{If: absent, Then: []casstore.Op{put("k", "2")}}); !answer.Done {
		t.Error("an entry whose marker has ended counts as an entry that is there")
	}
	if err := stream.Purge(t.Context()); err != nil { // of the guards, too
		t.Fatal(err)
	}
	if answer := commit(t, s, casstore.Txn{Read: []string{"k"}, Late: true}); answer.Read[0].There() {
		t.Errorf("read %+v from an empty bucket", answer.Read)
	}
}

// The answer of a member that lags, or an answer with a hole, is none.
func TestAnAnswerThatIsOldOrNotWholeIsNotTaken(t *testing.T) {
	js := connect(t, bucket(t))
	s := newServer(js, "locks")
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("k", "1")}})
	for wait, lags := 50*time.Millisecond, false; !lags && wait < limit; wait *= 2 { // a member can be slow as well
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, _, err := s.look(ctx, s.seen.Load()+1, []string{"k"}, nil)
		cancel()
		if lags = errors.Is(err, errLags); err == nil || !lags && wait > limit/2 {
			t.Errorf("a read from after the last message: %v; want that the member lags", err)
		}
	}
	other := connect(t, start(t, func(o *natsd.Options) { o.JetStream = false }))
	_, err := other.Conn().Subscribe("$JS.API.DIRECT.GET.KV_locks", func(m *nats.Msg) {
		for _, header := range []string{"Nats-Sequence: 7\r\nNats-Last-Sequence: 0", "Nats-Sequence: 9\r\nNats-Last-Sequence: 8"} { // 8 is lost
			part := &nats.Msg{Subject: m.Reply, Header: nats.Header{"Nats-Subject": {"$KV.locks.k"}}}
			for line := range strings.SplitSeq(header, "\r\n") {
				name, value, _ := strings.Cut(line, ": ")
				part.Header.Set(name, value)
			}
			_ = other.Conn().PublishMsg(part)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := newServer(other, "locks").once(t.Context(), []byte("{}"), limit); !errors.Is(err, errHoles) {
		t.Errorf("an answer with a hole: %v; want that a part is lost", err)
	}
}

func TestWhereTheConnectionIsCutOffNothingIsSentAndWatchesEnd(t *testing.T) {
	s := bucket(t)
	server := Server(connect(t, s), "locks")
	ended, begun := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- server.Watch(t.Context(), "k/", func([]casstore.Change) { close(begun) })
	}()
	<-begun
	s.Shutdown()
	if err := <-ended; !errors.Is(err, errCut) {
		t.Errorf("the watch: %v; want that the connection was cut off", err)
	}
	if _, err := server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{put("k", "")}}); !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("Commit: %v; want ErrNotReady, since nothing was sent", err)
	}
}

// The leader refuses before it proposes, but says the same where a member could not write.
func TestAFullBucketExecutesNothing(t *testing.T) {
	js := connect(t, bucket(t))
	s := Server(js, "locks")
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("k", "1")}})
	stream, err := js.Stream(t.Context(), "KV_locks")
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{200, -1} {
		config := stream.CachedInfo().Config
		config.MaxBytes = bytes
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		_, err := s.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{put("k", "2"), put("l", "2")}})
		if full := bytes > 0; errors.Is(err, casstore.ErrSettled) != full || !full && err != nil {
			t.Errorf("with a limit of %d bytes: %v; want ErrSettled if the bucket is full", bytes, err)
		}
		if bytes > 0 {
			if e := commit(t, s, casstore.Txn{Read: []string{"k"}, Late: true}).Read[0]; e.Value != "1" {
				t.Errorf("read %+v after a transaction that was refused", e)
			}
		}
	}
}

// A program that is slow to take reports gets all of them, or learns that its watch has ended.
func TestASlowWatchMissesNothing(t *testing.T) {
	s := Server(connect(t, bucket(t)), "locks")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	const turns, each = 60, 30
	last := map[string]string{}
	ended := make(chan error, 1)
	go func() {
		reports := 0
		ended <- s.Watch(ctx, "k/", func(changes []casstore.Change) {
			if reports++; reports == 1 {
				close(begun)
				<-goOn
			}
			for _, c := range changes {
				if last[c.Name] = c.Value; c.Deleted {
					delete(last, c.Name)
				}
			}
			if _, ok := last["k/end"]; ok {
				cancel()
			}
		})
	}()
	<-begun
	for turn := range turns {
		var txn casstore.Txn
		for i := range each {
			txn.Then = append(txn.Then, casstore.Op{Name: fmt.Sprintf("k/%d/%d", turn, i)})
		}
		commit(t, s, txn)
		for i := range txn.Then {
			txn.Then[i].Delete = i > 0
		}
		commit(t, s, txn)
	}
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("k/end", "")}})
	close(goOn)
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			t.Fatalf("the watch has ended: %v", err)
		}
	case <-time.After(limit):
		t.Fatal("the watch does not report the last entry")
	}
	if len(last) != turns+1 {
		t.Errorf("%d entries are there by the reports; want %d", len(last), turns+1)
	}
}

// The marker of a deletion is gone where the entry was written again before the watch came to it.
func TestASlowWatchReportsADeletionBeforeTheNewEntry(t *testing.T) {
	s := Server(connect(t, bucket(t)), "locks")
	commit(t, s, casstore.Txn{Then: []casstore.Op{put("k/x", "1")}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	var of []string // the reports of k/x
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, "k/", func(changes []casstore.Change) {
			for _, c := range changes {
				if c.Name == "k/x" {
					of = append(of, fmt.Sprintf("%v %s", c.Deleted, c.Value))
				}
				if c.Value == "2" {
					cancel()
				}
			}
			if len(of) == 1 && changes[0].Value == "1" {
				close(begun)
				<-goOn
			}
		})
	}()
	<-begun
	for i := range 20 { // more than a consumer of NATS sends ahead
		var txn casstore.Txn
		for n := range 60 {
			txn.Then = append(txn.Then, put(fmt.Sprintf("k/%d/%d", i, n), ""))
		}
		commit(t, s, txn)
	}
	for range 2 {
		commit(t, s, casstore.Txn{Then: []casstore.Op{{Name: "k/x", Delete: true}}})
		commit(t, s, casstore.Txn{Then: []casstore.Op{put("k/x", "2")}})
	}
	close(goOn)
	select {
	case <-ended:
	case <-time.After(limit):
		t.Fatal("the watch does not report the new entry")
	}
	if want := []string{"false 1", "true ", "false 2"}; !slices.Equal(of, want) {
		t.Errorf("the reports of the entry are %q; want %q", of, want)
	}
}

// Its numbers begin above the former ones, so that no fencing token comes twice.
func TestABucketThatIsMadeAnewHasGreaterNumbers(t *testing.T) {
	js := connect(t, bucket(t))
	last := int64(0)
	for range 3 {
		at := commit(t, Server(js, "locks"), casstore.Txn{Then: []casstore.Op{put("k", "")}}).Written[0].Number
		if at <= last || at >= 1<<46 {
			t.Errorf("number %d after %d; want a greater one, below 2^46", at, last)
		}
		last = at
		if err := js.DeleteStream(t.Context(), "KV_locks"); err != nil {
			t.Fatal(err)
		}
		if err := Create(t.Context(), js, "locks", 1); err != nil {
			t.Fatal(err)
		}
	}
}
