package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

func TestOneWordSaysWhatTheNextMessageDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := demonstrate(t.Context(), &out, memstore.New(), time.Second); err != nil {
			t.Fatal(err)
		}
		const want = `supersede
  first   you said hello and you said (superseded)
  second  you said stop and you said stop and you said stop and that is all (end)
queue
  first   you said hello and you said hello and you said hello and that is all (end)
  second  you said stop and you said stop and you said stop and that is all (end)
refuse
  first   you said hello and you said hello and you said hello and that is all (end)
  second  423 Locked
gather
  first   you said hello and you said hello and you said hello and that is all (end)
  10 more  you said 0 and 1 and 2 and 3 and 4 and 5 and 6 and 7 and 8 and 9 and you said 0 and 1 and 2 and 3 and 4 and 5 and 6 and 7 and 8 and 9 and you said 0 and 1 and 2 and 3 and 4 and 5 and 6 and 7 and 8 and 9 and that is all (end)
`
		if got := out.String(); got != want {
			t.Errorf("%s", got)
		}
	})
}

// A client that sends half a message, and stops, would hold the conversation until the
// server's ReadTimeout.
func TestHalfAMessageHoldsNoConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, err := core.New(memstore.New())
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t.Context(), locker)
		handler := (&chat{pace: time.Second}).handler(locker, "refuse")
		half, rest := io.Pipe()
		var slow sync.WaitGroup
		slow.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages", half)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		})
		synctest.Wait()
		if got := send(t.Context(), handler, "hello"); !strings.HasSuffix(got, "(end)") {
			t.Errorf("%s; want a whole answer", got)
		}
		_ = rest.Close()
		slow.Wait()
	})
}

// A turn that lingers answers a message and its correction together.
func TestATurnWaitsForTheCorrectionOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, err := core.New(memstore.New())
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t.Context(), locker)
		handler := (&chat{pace: time.Second, linger: 2 * time.Second}).handler(locker, "gather")
		var answers [2]string
		var clients sync.WaitGroup
		for i, message := range []string{"helo", "hello"} {
			clients.Go(func() { answers[i] = send(t.Context(), handler, message) })
			time.Sleep(time.Second)
		}
		clients.Wait()
		if want := "you said helo and hello and"; answers[0] != answers[1] || !strings.HasPrefix(answers[0], want) {
			t.Errorf("%q; want the same answer to both messages, %q", answers, want)
		}
	})
}
