package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/explore"
)

// A chat has no idempotency keys: a repeated message is answered again. Under all faults each message gets its
// whole answer in the end, so no lock keeps a conversation closed.
func TestNoCrashClosesAConversation(t *testing.T) {
	message := explore.Request{Path: "/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages", Body: "hello"}
	for _, word := range []string{"queue", "refuse"} {
		t.Run(word, func(t *testing.T) {
			explore.Run(t, explore.Service{
				Requests: []explore.Request{message, message},
				Handler: func(p *explore.Process) http.Handler {
					return (&chat{pace: time.Millisecond}).handler(p.Locker(), word)
				},
			})
		})
	}
}
