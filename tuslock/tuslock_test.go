package tuslock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/tuslock"
)

func TestMain(m *testing.M) {
	// tusd has a goroutine for each request, until 10 s after its end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/tus/tusd/v2/pkg/handler.newDelayedContext.func1"))
}

const key = "upload/u"

// newUploads is the Locker of one process.
func newUploads(t *testing.T, store core.Store, opts ...core.GuardOption) *tuslock.Locker {
	t.Helper()
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	uploads, err := tuslock.New(locker, "upload/{id}", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return uploads
}

// request is a request of tusd that wants an upload.
type request struct {
	handler.Lock
	asked time.Time // when it was asked to stop
}

// lock uses a Locker as tusd does: it ends the context when it has the lock.
func lock(t *testing.T, uploads *tuslock.Locker, id string, limit time.Duration) (*request, error) {
	t.Helper()
	l, err := uploads.NewLock(id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := &request{Lock: l}
	return r, l.Lock(ctx, func() { r.asked = time.Now() })
}

func mustLock(t *testing.T, uploads *tuslock.Locker) *request {
	t.Helper()
	r, err := lock(t, uploads, "u", 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func unlock(t *testing.T, r *request) {
	t.Helper()
	if err := r.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestARequestOfAnotherProcessAsksTheHolderToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		here, there := newUploads(t, store), newUploads(t, store)
		first := mustLock(t, here)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !first.asked.IsZero() {
			t.Fatal("asked to stop while no request waits")
		}
		begin := time.Now()
		got := make(chan *request)
		go func() { got <- mustLock(t, there) }()
		synctest.Wait()
		if took := first.asked.Sub(begin); first.asked.IsZero() || took > 0 {
			t.Errorf("asked to stop after %v", took)
		}
		unlock(t, first)
		second := <-got
		if took := time.Since(begin); took > 20*time.Millisecond {
			t.Errorf("the second request got the upload after %v", took)
		}
		unlock(t, second)
	})
}

// tusd ends the context of a lock as soon as it has the lock, and keeps the lock for hours.
func TestALockOutlivesTheContextOfItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		r := mustLock(t, newUploads(t, store))
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, _, held := store.Holder(key); !held || !r.asked.IsZero() {
			t.Errorf("held: %v, asked to stop: %v", held, r.asked)
		}
		unlock(t, r)
		if _, _, held := store.Holder(key); held {
			t.Error("held after Unlock")
		}
	})
}

// Before that it has no body which it could stop to read.
func TestARequestIsNotAskedToStopBeforeItHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploads := newUploads(t, memstore.New())
		first := mustLock(t, uploads)
		got := make(chan *request)
		for range 3 {
			go func() { got <- mustLock(t, uploads) }()
		}
		synctest.Wait()
		unlock(t, first)

		short, granted := <-got, time.Now()
		synctest.Wait()
		unlock(t, short)
		if took := time.Since(granted); took > 0 {
			t.Errorf("Unlock took %v", took)
		}

		long, granted := <-got, time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		if after := long.asked.Sub(granted); after < 50*time.Millisecond || after > 200*time.Millisecond {
			t.Errorf("asked to stop after %v", after)
		}
		unlock(t, long)

		unlock(t, <-got)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !short.asked.IsZero() {
			t.Error("asked to stop after Unlock")
		}
	})
}

func TestUnlockWaitsForTheWishToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, err := newUploads(t, store).NewLock("u")
		if err != nil {
			t.Fatal(err)
		}
		asked, answered := make(chan struct{}), false
		if err := l.Lock(t.Context(), func() { close(asked); time.Sleep(time.Second); answered = true }); err != nil {
			t.Fatal(err)
		}
		store.Expire(key)
		<-asked
		if err := l.Unlock(); !errors.Is(err, core.ErrLost) || !answered {
			t.Errorf("Unlock: %v, the wish to stop has returned: %v", err, answered)
		}
	})
}

// core.Newest: the request that came before is refused as a request is that finds the upload
// locked.
func TestANewerRequestTakesThePlaceOfTheRequestBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploads := newUploads(t, memstore.New(), core.Newest())
		first := mustLock(t, uploads)
		refused := make(chan error)
		go func() {
			_, err := lock(t, uploads, "u", 20*time.Second)
			refused <- err
		}()
		synctest.Wait()
		got := make(chan *request)
		go func() { got <- mustLock(t, uploads) }()
		if err := <-refused; !errors.Is(err, handler.ErrFileLocked) {
			t.Errorf("the second request: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if first.asked.IsZero() {
			t.Error("the first request is not asked to stop")
		}
		_ = first.Unlock() // it was superseded
		unlock(t, <-got)
	})
}

func TestTheUploadsOfAKilledProcessAreFreeWhenTheirLeasesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Take(key, 10*time.Second) // by a process that does not renew, and does not listen
		begin := time.Now()
		r := mustLock(t, newUploads(t, store))
		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("granted after %v", took)
		}
		unlock(t, r)
	})
}

func TestAHolderThatLosesItsLeaseIsAskedToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		lost := make(chan core.Loss, 1)
		r := mustLock(t, newUploads(t, store, core.OnLost(func(l core.Loss) { lost <- l })))
		time.Sleep(time.Minute)
		store.Take(key, time.Hour)
		<-lost
		synctest.Wait()
		if r.asked.IsZero() {
			t.Error("not asked to stop")
		}
		if err := r.Unlock(); !errors.Is(err, core.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestWhatTheClientIsAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		id     string
		opts   []core.GuardOption
		fault  func(memstore.Request) memstore.Fault
		want   string
		status int
	}{
		"tusd waits no longer":       {"u", nil, nil, "ERR_LOCK_TIMEOUT: failed to acquire lock before timeout", 500},
		"the rule waits no longer":   {"u", []core.GuardOption{core.Wait(time.Second)}, nil, "ERR_UPLOAD_LOCKED: file currently locked", 423},
		"an id that makes no key":    {"..", nil, nil, "ERR_UPLOAD_NOT_FOUND: upload not found", 404},
		"the store is not there":     {"u", nil, unreachable, "ERR_LOCK_UNAVAILABLE: The resource cannot be locked at the moment. Nothing was done.", 503},
		"the key is no lock":         {"u", nil, occupied, "ERR_LOCK_FAILED: The resource cannot be locked. Nothing was done.", 500},
		"a function finds no tenant": {"u", []core.GuardOption{core.And("{ctx.tenant}"), core.ContextFunc("tenant", secret)}, nil, "ERR_LOCK_FAILED: The server cannot handle the request because of an error of its own. Nothing was done.", 500},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				store.Take(key, time.Hour)
				uploads := newUploads(t, store, c.opts...)
				store.Intercept(c.fault)
				begin := time.Now()
				_, err := lock(t, uploads, c.id, 20*time.Second)
				var answer handler.Error
				if !errors.As(err, &answer) || err.Error() != c.want || answer.HTTPResponse.StatusCode != c.status ||
					answer.HTTPResponse.Body != c.want+"\n" {
					t.Errorf("got %v, status %d, body %q", err, answer.HTTPResponse.StatusCode, answer.HTTPResponse.Body)
				}
				if took := time.Since(begin); took > 25*time.Second {
					t.Errorf("waited for %v", took)
				}
				store.Intercept(nil)
			})
		})
	}
}

func unreachable(memstore.Request) memstore.Fault { return memstore.Unreachable }

func occupied(memstore.Request) memstore.Fault { return memstore.Fault{Err: driver.ErrKeyOccupied} }

func secret(context.Context, core.Request) (string, error) {
	return "", errors.New("10.0.0.7:5432 does not answer")
}

// tells calls a function when a lock is granted.
type tells struct{ granted func() }

func (o *tells) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Acquired: func(observe.Acquired) { o.granted() }}
}

// The time of a request ends when the lock is granted, and before Lock has returned: tusd
// would not unlock it.
func TestALockThatComesTooLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithCancel(t.Context())
		locker, err := core.New(store, core.WithObserver(&tells{cancel}))
		if err != nil {
			t.Fatal(err)
		}
		uploads, err := tuslock.New(locker, "upload/{id}")
		if err != nil {
			t.Fatal(err)
		}
		l, err := uploads.NewLock("u")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Lock(ctx, func() { t.Error("asked to stop") }); !errors.Is(err, handler.ErrLockTimeout) {
			t.Errorf("got %v", err)
		}
		if owner, _, held := store.Holder(key); held {
			t.Fatalf("%s holds the upload", owner)
		}
		if err := locker.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestNewRefusesWhatNoRuleCanBe(t *testing.T) {
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tuslock.New(locker, "upload/{id"); !errors.Is(err, core.ErrConfig) {
		t.Errorf("got %v", err)
	}
	if _, err := tuslock.New(nil, "upload/{id}"); !errors.Is(err, core.ErrConfig) {
		t.Errorf("got %v", err)
	}
}

// Two requests for one file, by different spellings of its ID, would write at the same time.
func TestOneFileIsOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploads := newUploads(t, memstore.New(), core.Wait(0))
		holder := mustLock(t, uploads)
		for _, id := range []string{"u", "./u", "a/../u", "u/.", ".//u", "./a/./../u"} {
			if _, err := lock(t, uploads, id, time.Minute); !errors.Is(err, handler.ErrFileLocked) {
				t.Errorf("%q: %v; want ErrFileLocked, since it is the file u", id, err)
			}
		}
		unlock(t, holder)
		for _, id := range []string{"..", "../uploads/u", "a/../../uploads/u", ".", "a/.."} {
			if _, err := lock(t, uploads, id, time.Minute); !errors.Is(err, handler.ErrNotFound) {
				t.Errorf("%q: %v; want ErrNotFound, since it is outside of the directory", id, err)
			}
		}
	})
}

// An upload with an ID that makes no key would be created, and never be found again.
func TestAnUploadWithALongIDIsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploads := newUploads(t, memstore.New(), core.Wait(0))
		long := strings.Repeat("x", 600) + "/"
		one, err := lock(t, uploads, long+"1", time.Minute)
		if err != nil {
			t.Fatalf("%v; want the lock", err)
		}
		other, err := lock(t, uploads, long+"2", time.Minute)
		if err != nil {
			t.Fatalf("%v; want the lock of another upload", err)
		}
		if _, err := lock(t, uploads, "./"+long+"1", time.Minute); !errors.Is(err, handler.ErrFileLocked) {
			t.Errorf("%v; want ErrFileLocked", err)
		}
		unlock(t, one)
		unlock(t, other)
		for id, want := range map[string]string{"u": "u", "a/u+m": "a/u+m", strings.Repeat("x", 257): "sha256-", strings.Repeat("/x", 100): "sha256-"} {
			if got := tuslock.ID(id); !strings.HasPrefix(got, want) || len(got) > 71 {
				t.Errorf("ID(%q) is %q; want %s", id, got, want)
			}
		}
	})
}
