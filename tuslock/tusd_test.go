package tuslock_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// pods are processes that serve one directory of uploads. Their connections are pipes, so
// that they run in a bubble.
type pods struct {
	*testing.T
	dir   string
	store *memstore.Store
}

// pod starts a process, and returns a client of it.
func (p *pods) pod(opts ...core.GuardOption) *http.Client {
	p.Helper()
	composer := handler.NewStoreComposer()
	files := &remote{DataStore: filestore.New(p.dir), Locker: newUploads(p.T, p.store, opts...)}
	composer.UseCore(files)
	composer.UseLocker(files)
	tus, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		p.Fatal(err)
	}
	listener := make(pipes)
	server := &http.Server{Handler: http.StripPrefix("/files/", tus)}
	go func() { _ = server.Serve(listener) }() // until Shutdown
	transport := &http.Transport{DialContext: listener.dial}
	p.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := server.Shutdown(context.Background()); err != nil {
			p.Error(err)
		}
		time.Sleep(time.Minute) // tusd has a goroutine for each request, for 10 s more
	})
	return &http.Client{Transport: transport}
}

// remote is a directory that is 20 ms away. A chunk is written, and a request asked to stop,
// in an order that the race detector sees: tusd looks for the body that it stops to read
// without a mutex.
type remote struct {
	handler.DataStore
	handler.Locker
	order sync.Mutex
}

func (r *remote) GetUpload(ctx context.Context, id string) (handler.Upload, error) {
	time.Sleep(20 * time.Millisecond)
	upload, err := r.DataStore.GetUpload(ctx, id)
	return remoteUpload{upload, r}, err
}

type remoteUpload struct {
	handler.Upload
	in *remote
}

func (u remoteUpload) WriteChunk(ctx context.Context, offset int64, src io.Reader) (int64, error) {
	u.in.order.Lock()
	u.in.order.Unlock() //nolint:staticcheck // for the order alone
	return u.Upload.WriteChunk(ctx, offset, src)
}

func (r *remote) NewLock(id string) (handler.Lock, error) {
	l, err := r.Locker.NewLock(id)
	return remoteLock{l, r}, err
}

type remoteLock struct {
	of handler.Lock
	in *remote
}

func (l remoteLock) Unlock() error { return l.of.Unlock() }

func (l remoteLock) Lock(ctx context.Context, requestUnlock func()) error {
	return l.of.Lock(ctx, func() {
		l.in.order.Lock()
		defer l.in.order.Unlock()
		requestUnlock()
	})
}

// create makes an upload of ten bytes.
func (p *pods) create(client *http.Client) (url string) {
	p.Helper()
	created := send(p.T, client, http.MethodPost, "http://pod/files/", nil, "Upload-Length", "10")
	if created.StatusCode != http.StatusCreated {
		p.Fatal(created.Status)
	}
	return created.Header.Get("Location")
}

// stored is the content of an upload's file.
func (p *pods) stored(url string) string {
	p.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, url[strings.LastIndex(url, "/")+1:]))
	if err != nil {
		p.Fatal(err)
	}
	return string(data)
}

// answer is the answer to a client, and its time.
type answer struct {
	*http.Response
	body string
	at   time.Time
}

func send(t *testing.T, client *http.Client, method, url string, body io.Reader, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Errorf("%s: %v", method, err)
		return answer{&http.Response{}, "", time.Now()}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{resp, string(text), time.Now()}
}

func patch(t *testing.T, client *http.Client, url string, offset int, body io.Reader) answer {
	t.Helper()
	return send(t, client, http.MethodPatch, url, body,
		"Content-Type", "application/offset+octet-stream", "Upload-Offset", strconv.Itoa(offset))
}

// hang sends the beginning of a chunk from a client that then is silent.
func hang(t *testing.T, client *http.Client, url string, offset int, begin string) (ended <-chan answer) {
	t.Helper()
	body, chunk := io.Pipe()
	done := make(chan answer, 1)
	go func() { done <- patch(t, client, url, offset, body) }()
	if _, err := chunk.Write([]byte(begin)); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { chunk.Close() })
	synctest.Wait()
	return done
}

// pipes is a listener with pipes as connections.
type pipes chan net.Conn

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p <- there
	return here, nil
}

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestAnUploadThatHangsIsResumedOnAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pods{t, t.TempDir(), memstore.New()}
		here, there := p.pod(), p.pod()
		url := p.create(here)
		first := hang(t, here, url, 0, "01234")
		time.Sleep(time.Second)

		begin := time.Now()
		head := send(t, there, http.MethodHead, url, nil)
		if got := head.Header.Get("Upload-Offset"); head.StatusCode != http.StatusOK || got != "5" {
			t.Errorf("HEAD: %s, offset %q", head.Status, got)
		}
		if took := head.at.Sub(begin); took > 30*time.Millisecond {
			t.Errorf("HEAD got the upload after %v", took)
		}
		second := patch(t, there, url, 5, strings.NewReader("56789"))
		if took := second.at.Sub(begin); second.StatusCode != http.StatusNoContent || took > 60*time.Millisecond {
			t.Errorf("PATCH: %s after %v: %s", second.Status, took, second.body)
		}
		if stopped := <-first; stopped.StatusCode != http.StatusBadRequest || !strings.HasPrefix(stopped.body, "ERR_UPLOAD_INTERRUPTED") {
			t.Errorf("the first request: %s: %s", stopped.Status, stopped.body)
		}
		if got := p.stored(url); got != "0123456789" {
			t.Errorf("stored %q", got)
		}
	})
}

// tusd forgets a wish to stop that comes before it reads the body: without the pause in Lock
// the third request waits until tusd lets it wait no longer, and gets a 500.
func TestARequestThatWaitedGivesWayToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pods{t, t.TempDir(), memstore.New()}
		pod := p.pod() // callers of one process get a lock in their order
		url := p.create(pod)
		p.store.Take("upload/"+url[strings.LastIndex(url, "/")+1:], time.Second)
		second := hang(t, pod, url, 0, "01234")
		begin := time.Now()
		head := send(t, pod, http.MethodHead, url, nil)
		if got := head.Header.Get("Upload-Offset"); head.StatusCode != http.StatusOK || got != "5" {
			t.Errorf("HEAD: %s, offset %q", head.Status, got)
		}
		if took := head.at.Sub(begin); took > 2*time.Second {
			t.Errorf("HEAD got the upload after %v", took)
		}
		if stopped := <-second; stopped.StatusCode != http.StatusBadRequest {
			t.Errorf("the request before: %s: %s", stopped.Status, stopped.body)
		}
	})
}

func TestAnUploadWhoseLeaseIsLostReadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pods{t, t.TempDir(), memstore.New()}
		here, there := p.pod(core.Watchdog(3*time.Second)), p.pod()
		url := p.create(here)
		first := hang(t, here, url, 0, "01234")
		release := p.store.Take("upload/"+url[strings.LastIndex(url, "/")+1:], time.Hour)
		begin := time.Now()
		stopped := <-first
		if took := stopped.at.Sub(begin); stopped.StatusCode != http.StatusBadRequest || took > 3*time.Second {
			t.Errorf("stopped after %v: %s: %s", took, stopped.Status, stopped.body)
		}
		release()
		if second := patch(t, there, url, 5, strings.NewReader("56789")); second.StatusCode != http.StatusNoContent {
			t.Errorf("PATCH: %s: %s", second.Status, second.body)
		}
		if got := p.stored(url); got != "0123456789" {
			t.Errorf("stored %q", got)
		}
	})
}

// Without a lock both chunks are in the file, and it is damaged.
func TestAChunkThatComesTwiceIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pods{t, t.TempDir(), memstore.New()}
		here, there := p.pod(), p.pod()
		url := p.create(here)
		first := hang(t, here, url, 0, "01234")
		again := patch(t, there, url, 0, strings.NewReader("0123456789"))
		if again.StatusCode != http.StatusConflict || !strings.HasPrefix(again.body, "ERR_MISMATCHED_OFFSET") {
			t.Errorf("the chunk that came again: %s: %s", again.Status, again.body)
		}
		<-first
		if got := p.stored(url); got != "01234" {
			t.Errorf("stored %q", got)
		}
	})
}
