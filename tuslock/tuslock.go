package tuslock

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
)

const (
	// longest is longer than tusd lets a request wait.
	longest = 24 * time.Hour
	// head is for how long a request has the lock before it is asked to stop. tusd forgets a
	// request to stop that comes before it has begun to read the body.
	head = 100 * time.Millisecond
)

// Locker is a [handler.Locker]. [New] makes one; the zero value is not usable. A Locker is
// safe for concurrent use.
type Locker struct{ rule *core.Guard }

// New returns a Locker. Its locks have the keys of a template ([core.Serialize]). {id} in
// the template is the ID of an upload, as [ID] returns it. Code that locks an upload
// elsewhere makes the same key: core.Key("upload", tuslock.ID(id)).
//
// The rule has [core.Attentive], and a request waits for as long as tusd lets it
// (handler.Config.AcquireLockTimeout, 20 s). Options in opts override that.
//
// New returns an error that matches [core.ErrConfig] where [core.NewGuard] does.
func New(locker *core.Locker, template string, opts ...core.GuardOption) (*Locker, error) {
	rule, err := core.NewGuard(locker, template, append([]core.GuardOption{core.Attentive(), core.Wait(longest)}, opts...)...)
	if err != nil {
		return nil, err
	}
	return &Locker{rule}, nil
}

// longestID bounds the length of an ID, escaped as in a key. A hash replaces a longer ID. It
// leaves half of a key to the template.
const longestID = 256

// ID returns the text that stands for {id} in a key. One file is one text: a store that keeps
// files joins the ID to its directory, so that ID, ./ID and a/../ID are one file
// ([filepath.Clean]). A key has at most 512 bytes, and the ID of an upload on S3 may be as
// long: for an ID of more than 256 bytes, escaped, its SHA-256 stands in the key. ID returns
// "" for an ID that leaves the directory of the store. Such an upload makes no key.
func ID(id string) string {
	id = filepath.ToSlash(filepath.Clean(id))
	if id == "." || id == ".." || strings.HasPrefix(id, "../") {
		return ""
	}
	if escaped, err := core.Key(id); err != nil || len(escaped) > longestID {
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(id)))
	}
	return id
}

// UseIn makes the composer use the Locker.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock implements [handler.Locker]. It takes no lock, and returns no error.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	return &lock{rule: l.rule, id: id, unlocked: make(chan struct{})}, nil
}

// lock is the lock of one upload for one request.
type lock struct {
	rule     *core.Guard
	id       string
	unlocked chan struct{}

	// Of the lock that was taken.
	section core.Section
	watch   sync.WaitGroup
	end     context.CancelCauseFunc
}

// Lock implements [handler.Lock]. It calls requestUnlock at most once, and not after Unlock
// has returned.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	// tusd ends ctx when Lock returns. It bounds the wait; the lease goes on.
	held, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	section, refusal := l.rule.Enter(held, &adapter.Message{
		Name: "upload", Metadata: map[string]string{"id": ID(l.id)}, Source: l, Lookup: ctx.Value,
	})
	inTime := stop()
	switch {
	case refusal != nil:
		end(nil)
		return refused(refusal)
	case !inTime: // granted as ctx ended
		section.Leave(held)
		end(nil)
		return handler.ErrLockTimeout
	}
	l.section, l.end = section, end
	granted := time.Now()
	l.watch.Go(func() {
		select {
		case <-l.unlocked:
			return
		case <-core.LeaseFromContext(section.Context()).Wanted():
		case <-section.Context().Done(): // lost
		}
		select {
		case <-l.unlocked:
		case <-time.After(head - time.Since(granted)):
			requestUnlock()
		}
	})
	return nil
}

// Unlock implements [handler.Lock]. It returns an error if the lease was lost, which tusd
// does not look at.
func (l *lock) Unlock() error {
	close(l.unlocked)
	l.watch.Wait()
	lost := l.section.Lost()
	l.section.Leave(l.section.Context())
	l.end(nil)
	if lost != nil {
		return lost.LogError()
	}
	return nil
}

// refused returns the error that tusd answers with. Its text is fixed: tusd sends it to the
// client.
func refused(r *core.Refusal) error {
	switch r.Reason {
	case reason.Held, reason.QueueFull, reason.PrincipalLimit, reason.Superseded:
		return handler.ErrFileLocked
	case reason.Deadline, reason.Canceled:
		return handler.ErrLockTimeout
	case reason.BadKey:
		return handler.ErrNotFound
	}
	if r.Retryable() {
		return handler.NewError("ERR_LOCK_UNAVAILABLE", r.Reason.Text(), http.StatusServiceUnavailable)
	}
	return handler.NewError("ERR_LOCK_FAILED", r.Reason.Text(), http.StatusInternalServerError)
}
