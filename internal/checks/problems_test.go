package checks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// The code of docs/problems, one function for each page, and a test of the page's promises.
// Two routers on one store in memory are two processes.

type payments interface {
	Transfer(ctx context.Context, r *http.Request, reference string) error
}

// Of docs/problems.md#double-payments.
func paymentsOnce(mux *http.ServeMux, store idempotency.Store, bank payments) error {
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
	if err != nil {
		return err
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := bank.Transfer(r.Context(), r, idempotency.DownstreamKey(r.Context())); err != nil {
			http.Error(w, "the bank does not answer", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	mux.Handle("POST /payments", httplock.Idempotent(engine)(pay))
	return nil
}

// Of docs/problems.md#cron-on-three-replicas.
func nightly(ctx context.Context, store idempotency.Store, sendReports func(context.Context) error, log func(error)) error {
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		return err
	}
	for tick := time.NewTicker(time.Hour); ; {
		if err := once.Per(ctx, engine, "send-reports", 24*time.Hour, sendReports); err != nil {
			log(err) // another replica is at it, or the job failed: the next tick looks again
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Of docs/problems.md#one-answer-per-chat.
func chats(mux *http.ServeMux, locker *core.Locker, answer http.Handler) {
	turn := core.Serialize(locker, "chat/{id:uuid}",
		core.ReadBody(1<<16),        // a message that arrives slowly does not hold the chat
		core.Wait(0),                // a second message gets 423 at once; a duration lets it wait
		core.MaxHold(5*time.Minute), // a model that hangs
	)
	mux.Handle("POST /chats/{id}/messages", httplock.Guard(turn)(answer))
}

// The next message of the chat ends this answer at its next part.
func stream(w http.ResponseWriter, r *http.Request, parts iter.Seq[string]) {
	for part := range parts {
		if r.Context().Err() != nil { // a newer message has come, or the client has gone
			return
		}
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush() // or the part waits for 4 KiB of others
	}
}

type invoices interface {
	Update(ctx context.Context, id, version string, form url.Values) (changed bool, err error)
}

// Of docs/problems.md#two-tabs-one-form.
func forms(mux *http.ServeMux, locker *core.Locker, engine *idempotency.Engine, invoices invoices) {
	save := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		changed, err := invoices.Update(r.Context(), r.PathValue("id"), r.PostFormValue("version"), r.PostForm)
		switch {
		case err != nil:
			http.Error(w, "not saved", http.StatusInternalServerError)
		case !changed: // UPDATE ... WHERE id = $1 AND version = $2 changed no row
			http.Error(w, "The invoice was changed in another window.", http.StatusPreconditionFailed)
		default:
			http.Redirect(w, r, "/invoices/"+r.PathValue("id"), http.StatusSeeOther)
		}
	})
	once := httplock.Idempotent(engine.With(idempotency.Under(core.Serialize(locker, "invoice/{id:int}"))))
	mux.Handle("POST /invoices/{id}", fromForm("form_id", once(save)))
}

// fromForm takes the key from a hidden field of the form.
func fromForm(field string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(idempotency.KeyHeader, r.PostFormValue(field))
		next.ServeHTTP(w, r)
	})
}

type parts interface {
	Append(ctx context.Context, upload, offset string, token int64, chunk io.Reader) error
}

// Of docs/problems.md#upload-resumed-on-another-pod.
func uploads(mux *http.ServeMux, locker *core.Locker, parts parts) {
	chunk := core.Serialize(locker, "upload/{id:uuid}",
		core.Wait(15*time.Second),     // the earlier connection may still be closing
		core.Watchdog(10*time.Second), // a pod that was killed blocks its uploads for as long
		core.Attentive(),              // the pod that reads is notified when the chunk comes again
	)
	mux.Handle("PATCH /uploads/{id}", httplock.Guard(chunk)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer stopWhenWanted(w, r)()
		token := core.LeaseFromContext(r.Context()).Token()
		if err := parts.Append(r.Context(), r.PathValue("id"), r.Header.Get("Upload-Offset"), token, r.Body); err != nil {
			http.Error(w, "not stored", http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})))
}

// stopWhenWanted ends the reading of the body when another request waits for the lock.
func stopWhenWanted(w http.ResponseWriter, r *http.Request) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-core.LeaseFromContext(ctx).Wanted():
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		case <-ctx.Done():
		}
	})
	return func() { cancel(); watching.Wait() } // w is not used after the handler
}

// Of docs/problems.md#webhooks-that-come-twice: the key in another header.
func webhooksByHeader(mux *http.ServeMux, store idempotency.Store, verified func(http.Handler) http.Handler, handle http.Handler) error {
	engine, err := idempotency.New(store,
		idempotency.Scope(func(context.Context, core.Request) (string, error) { return "acme", nil }), // the sender
		idempotency.Retention(7*24*time.Hour),                                                         // longer than the sender goes on sending
	)
	if err != nil {
		return err
	}
	mux.Handle("POST /webhooks/acme", verified(fromHeader("Webhook-Id", httplock.Idempotent(engine)(handle))))
	return nil
}

// fromHeader takes the key from another header.
func fromHeader(name string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(idempotency.KeyHeader, r.Header.Get(name))
		next.ServeHTTP(w, r)
	})
}

type event struct {
	ID   string
	Type string
}

// Of docs/problems.md#webhooks-that-come-twice: the key in the body.
func webhooksByBody(engine *idempotency.Engine, handle func(ctx context.Context, e event) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			http.Error(w, "not an event", http.StatusBadRequest)
			return
		}
		// The input is the ID alone: a second delivery may say other things about the delivery.
		_, err := once.Do(r.Context(), engine, "acme/"+e.ID, e.ID, func(ctx context.Context, _ string) (bool, error) {
			return true, handle(ctx, e)
		})
		if err != nil {
			http.Error(w, "send it again", http.StatusServiceUnavailable)
		}
	})
}

// signedIn is authentication.
func signedIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), "user", "alice"))) //nolint:staticcheck,revive // the key of the page
	})
}

// post sends a request with header fields and a body, and returns the answer.
func post(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type count struct{ atomic.Int64 }

func (c *count) Transfer(context.Context, *http.Request, string) error { c.Add(1); return nil }

func (c *count) Update(_ context.Context, _, version string, _ url.Values) (bool, error) {
	return c.CompareAndSwap(int64(len(version)), int64(len(version))+1), nil
}

func (c *count) ServeHTTP(http.ResponseWriter, *http.Request) { c.Add(1) }

func TestAPaymentThatIsSentTwiceIsMadeOnce(t *testing.T) {
	store, bank := memstore.New(), new(count)
	for _, want := range []string{"", "true"} { // a pod each
		mux := http.NewServeMux()
		if err := paymentsOnce(mux, store, bank); err != nil {
			t.Fatal(err)
		}
		w := post(signedIn(mux), http.MethodPost, "/payments", `{"amount":100}`, "Idempotency-Key", "order-17")
		if w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != want || bank.Load() != 1 {
			t.Errorf("%d %v, %d transfers", w.Code, w.Header(), bank.Load())
		}
	}
}

func TestACronJobOfThreeReplicasRunsOnceADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithTimeout(t.Context(), 72*time.Hour-time.Minute) // a bubble begins at midnight
		defer cancel()
		var runs count
		var replicas sync.WaitGroup
		for range 3 {
			replicas.Go(func() {
				_ = nightly(ctx, store, func(context.Context) error { runs.Add(1); return nil }, func(error) {})
			})
		}
		replicas.Wait()
		if runs.Load() != 3 {
			t.Errorf("it ran %d times in three days", runs.Load())
		}
	})
}

func TestAChatGetsOneAnswerAtATime(t *testing.T) {
	const path = "/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages"
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		leave := make(chan struct{})
		var pods [2]*http.ServeMux
		for i := range pods {
			locker, err := core.New(store)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = locker.Close(t.Context()) }()
			pods[i] = http.NewServeMux()
			chats(pods[i], locker, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				<-leave
			}))
		}
		var first sync.WaitGroup
		first.Go(func() { post(pods[0], http.MethodPost, path, "hello") })
		synctest.Wait()
		if w := post(pods[1], http.MethodPost, strings.Replace(path, "ff-", "FF-", 1), "again"); w.Code != http.StatusLocked {
			t.Errorf("a second message: %d", w.Code)
		}
		close(leave)
		first.Wait()
		half, rest := io.Pipe() // a message that arrives slowly
		var slow sync.WaitGroup
		slow.Go(func() { pods[0].ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, half)) })
		synctest.Wait()
		if w := post(pods[1], http.MethodPost, path, "again"); w.Code != http.StatusOK {
			t.Errorf("the next message, while half of another has arrived: %d; want 200", w.Code)
		}
		_ = rest.Close()
		slow.Wait()
	})
}

func TestTheNextMessageEndsAnAnswer(t *testing.T) {
	const path = "/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages"
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var pods [2]*http.ServeMux
		words := func(yield func(string) bool) {
			for range 20 {
				if !yield("word ") {
					return
				}
				time.Sleep(time.Second)
			}
		}
		for i := range pods {
			locker, err := core.New(store)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = locker.Close(t.Context()) }()
			pods[i] = http.NewServeMux()
			turn := core.Serialize(locker, "chat/{id:uuid}", core.Newest())
			pods[i].Handle("POST /chats/{id}/messages", httplock.Guard(turn)(http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) { stream(w, r, words) })))
		}
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- post(pods[0], http.MethodPost, path, "hello") }()
		time.Sleep(5*time.Second + time.Second/4)
		between := make(chan *httptest.ResponseRecorder)
		go func() { between <- post(pods[1], http.MethodPost, path, "no") }()
		time.Sleep(time.Second / 4)
		second := make(chan *httptest.ResponseRecorder)
		go func() { second <- post(pods[1], http.MethodPost, path, "again") }()
		if w := <-between; w.Code != http.StatusConflict {
			t.Errorf("a message that waited when the next came: %d %q", w.Code, w.Body)
		}
		if w := <-first; w.Code != http.StatusOK || w.Body.String() != strings.Repeat("word ", 6) || !w.Flushed {
			t.Errorf("the first answer: %d %q, flushed %v; want six words that were flushed", w.Code, w.Body, w.Flushed)
		}
		if w := <-second; w.Code != http.StatusOK || w.Body.String() != strings.Repeat("word ", 20) {
			t.Errorf("the second answer: %d %q", w.Code, w.Body)
		}
	})
}

func TestAFormIsSavedOnceAndNotOverAnother(t *testing.T) {
	store, version := memstore.New(), new(count)
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close(t.Context()) }()
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	forms(mux, locker, engine, version)
	for i, c := range []struct {
		form string
		want int
	}{
		{"form_id=a&version=", http.StatusSeeOther},
		{"form_id=a&version=", http.StatusSeeOther}, // a second click
		{"form_id=b&version=", http.StatusPreconditionFailed},
		{"form_id=c&version=1", http.StatusSeeOther},
		{"version=1", http.StatusBadRequest},
	} {
		w := post(signedIn(mux), http.MethodPost, "/invoices/7", c.form, "Content-Type", "application/x-www-form-urlencoded")
		if w.Code != c.want {
			t.Errorf("%d: %s: %d %s", i, c.form, w.Code, w.Body)
		}
	}
	if version.Load() != 2 {
		t.Errorf("version %d", version.Load())
	}
}

// chunks are parts that refuse an outdated token.
type chunks struct {
	mu    sync.Mutex
	token int64
	all   string
}

func (f *chunks) Append(_ context.Context, _, offset string, token int64, chunk io.Reader) error {
	b, err := io.ReadAll(chunk)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || token < f.token || offset != fmt.Sprint(len(f.all)) {
		return fmt.Errorf("chunk refused: %w", err)
	}
	f.token, f.all = token, f.all+string(b)
	return nil
}

func TestAnUploadGoesOnOnAnotherPod(t *testing.T) {
	const path = "/uploads/6f9619ff-8b86-d011-b42d-00c04fc964ff"
	synctest.Test(t, func(t *testing.T) {
		store, parts := memstore.New(), new(chunks)
		pod := func() *http.ServeMux {
			locker, err := core.New(store)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = locker.Close(context.Background()) })
			mux := http.NewServeMux()
			uploads(mux, locker, parts)
			return mux
		}
		store.Take("upload/6f9619ff-8b86-d011-b42d-00c04fc964ff", 10*time.Second) // by a pod that was killed
		begin := time.Now()
		if w := post(pod(), http.MethodPatch, path, "one", "Upload-Offset", "0"); w.Code != http.StatusNoContent || time.Since(begin) > 15*time.Second {
			t.Errorf("%d after %v", w.Code, time.Since(begin))
		}
		next := pod()
		for i, want := range []int{http.StatusNoContent, http.StatusConflict} { // the second is a duplicate
			if w := post(next, http.MethodPatch, path, "two", "Upload-Offset", "3"); w.Code != want {
				t.Errorf("chunk %d: %d", i, w.Code)
			}
		}
		if parts.all != "onetwo" {
			t.Errorf("stored %q", parts.all)
		}
	})
}

// begun are chunks that say when they begin to read.
type begun struct {
	chunks
	began chan struct{}
}

func (f *begun) Append(ctx context.Context, upload, offset string, token int64, chunk io.Reader) error {
	f.began <- struct{}{}
	return f.chunks.Append(ctx, upload, offset, token, chunk)
}

// The client of the first connection sends no more, and its chunk comes again on another pod.
func TestADeadConnectionGivesItsUploadAway(t *testing.T) {
	const path = "/uploads/6f9619ff-8b86-d011-b42d-00c04fc964ff"
	store, parts := memstore.New(), &begun{began: make(chan struct{}, 2)}
	var urls [2]string
	for i := range urls {
		locker, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(context.Background()) })
		mux := http.NewServeMux()
		uploads(mux, locker, parts)
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		urls[i] = srv.URL
	}
	patch := func(pod string, body io.Reader) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, pod+path, body)
		if err != nil {
			return 0, err
		}
		r.Header.Set("Upload-Offset", "0")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	body, connection := io.Pipe()
	dead := make(chan int, 1)
	go func() {
		code, _ := patch(urls[0], body) // it may see its connection end
		dead <- code
	}()
	if _, err := io.WriteString(connection, "one"); err != nil {
		t.Fatal(err)
	}
	<-parts.began
	if code, err := patch(urls[1], strings.NewReader("one")); code != http.StatusNoContent || err != nil || parts.all != "one" {
		t.Errorf("the chunk that comes again: %d, %v; stored %q", code, err, parts.all)
	}
	_ = connection.Close()
	if code := <-dead; code == http.StatusNoContent {
		t.Error("the dead connection has stored its part")
	}
}

func TestAWebhookThatComesTwiceIsHandledOnce(t *testing.T) {
	store, handled := memstore.New(), new(count)
	mux := http.NewServeMux()
	if err := webhooksByHeader(mux, store, func(next http.Handler) http.Handler { return next }, handled); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if w := post(mux, http.MethodPost, "/webhooks/acme", `{"type":"paid"}`, "Webhook-Id", "msg_1"); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if handled.Load() != 1 {
		t.Errorf("by the header: handled %d times", handled.Load())
	}
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	h := webhooksByBody(engine, func(context.Context, event) error { handled.Add(1); return nil })
	for _, body := range []string{`{"ID":"evt_1","pending":2}`, `{"ID":"evt_1","pending":1}`} {
		if w := post(h, http.MethodPost, "/webhooks/acme", body); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if handled.Load() != 2 {
		t.Errorf("by the body: handled %d times", handled.Load()-1)
	}
}
