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
		handler := (&chat{time.Second}).handler(locker, "refuse")
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
