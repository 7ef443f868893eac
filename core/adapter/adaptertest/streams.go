package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/testkit"
)

// multipart uploads a file that is too long for the server's memory.
func (w *world) multipart() {
	file := make(chan string, 1)
	s, client := w.serve(func(_ context.Context, call *Call) error {
		name, err := testkit.OnDisk(call.R)
		if err != nil {
			w.Error(err)
		}
		file <- name
		return nil
	}, core.Serialize(w.locker(), "account/{id}"))
	testkit.Upload(w, client.(*HTTPClient).Server, "/1/call")
	if v := s.Visit(w); v.After.MultipartForm == nil {
		w.Error("the original knows nothing of the form")
	}
	name := <-file
	testkit.Until(w, "the temporary file is removed", func() bool {
		_, err := os.Stat(name)
		return name != "" && errors.Is(err, os.ErrNotExist)
	})
}

func (w *world) hijacked() {
	s, client := w.serve(func(_ context.Context, call *Call) error {
		conn, rw, err := call.W.(http.Hijacker).Hijack()
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
		return errors.Join(err, rw.Flush())
	}, core.Serialize(w.locker(), "account/{id}"))
	w.wantOK(client.Call(w.Context(), account("1")), "raw")
	s.Visit(w)
	w.wantFree("account/1")
}

// parts makes the behaviour that each part of an answer reaches the client
// while the handler is still inside, and that the lock is held as long.
func parts(push func(*Call) error) func(w *world) {
	return func(w *world) {
		locker := w.locker()
		next := make(chan struct{})
		s, client := w.serve(func(ctx context.Context, call *Call) error {
			for i := range 2 {
				if err := errors.Join(call.Send(fmt.Sprintf("part %d\n", i)), push(call)); err != nil {
					w.Error(err)
				}
				if err := testkit.Meet(ctx, next); err != nil {
					return err
				}
			}
			return nil
		}, core.Serialize(locker, "account/{id}"))
		w.reads(s, client, locker, next, []string{"part 0"}, []string{"part 1"})
	}
}

// reads reads an answer part by part; next lets the handler go on.
func (w *world) reads(s *Service, client Client, locker *core.Locker, next chan<- struct{}, parts ...[]string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	stream, err := client.Open(ctx, account("1"))
	if err != nil {
		w.Fatal(err)
	}
	defer stream.Close()
	for _, lines := range parts {
		for _, want := range lines {
			if got, err := stream.Next(); got != want || err != nil {
				w.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
		if _, err := locker.TryLock(ctx, "account/1"); !errors.Is(err, core.ErrHeld) {
			w.Errorf("%v; want the lock held while the handler streams", err)
		}
		select {
		case next <- struct{}{}:
		case <-ctx.Done():
			w.Fatal("the handler has gone")
		}
	}
	if got, err := stream.Next(); !errors.Is(err, io.EOF) {
		w.Errorf("%q, %v; want the end", got, err)
	}
	s.Visit(w)
	w.wantFree("account/1")
}

func (w *world) events() {
	locker := w.locker()
	next := make(chan struct{})
	s, client := w.serve(func(ctx context.Context, call *Call) error {
		call.W.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			if err := call.Send(fmt.Sprintf("event: tick\ndata: %d\n\n", i)); err != nil {
				w.Error(err)
			}
			_ = flush(call)
			if err := testkit.Meet(ctx, next); err != nil {
				return err
			}
		}
		return nil
	}, core.Serialize(locker, "account/{id}"))
	w.reads(s, client, locker, next, []string{"event: tick", "data: 0", ""}, []string{"event: tick", "data: 1", ""})
}
