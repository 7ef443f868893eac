package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

func textOf(t testing.TB, ticket idempotency.Ticket) string {
	t.Helper()
	text, err := ticket.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestATicketGoesThroughAMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		type message struct{ Claim, None idempotency.Ticket }
		sent, err := json.Marshal(message{Claim: w.handed(e, "k")})
		if err != nil {
			t.Fatal(err)
		}
		var got message
		if err := json.Unmarshal(sent, &got); err != nil || got.None != (idempotency.Ticket{}) {
			t.Fatalf("the message %s reads as %v, %v; want its second ticket to be empty", sent, got, err)
		}
		if text := textOf(t, got.Claim); len(text) > 300 {
			t.Errorf("a ticket has %d bytes; want at most 300", len(text))
		}
		w.take(e, got.None, idempotency.ErrTicketMalformed, w.none)
		w.take(e, got.Claim, nil, paid)
	})
}

func TestATicketIsNotShown(t *testing.T) {
	inBubble(t, func(w *world) {
		ticket := w.handed(w.engine(), "k")
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("handed over", "ticket", ticket, "pointer", &ticket)
		slog.New(slog.NewTextHandler(&log, nil)).Info("handed over", "ticket", ticket)
		shown := log.String() + ticket.String() + fmt.Sprintf("%v %+v %#v %s %q", ticket, ticket, ticket, ticket, ticket) + fmt.Sprint(&ticket)
		token := w.record().Token
		if strings.Contains(shown, textOf(t, ticket)) || strings.Contains(shown, token) || !strings.Contains(shown, "ticket of request") {
			t.Errorf("a text that may be logged shows the ticket: %s", shown)
		}
	})
}

// A ticket of another store, or of another prefix, finds no record there.
func TestABadTicketTakesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		ticket := w.handed(e, "k")
		w.take(w.engineOn(memstore.New()), ticket, idempotency.ErrTicketRanOut, w.none)
		w.take(w.engine(idempotency.Service("other")), ticket, nil, paid) // the name of the record is in it
		text := textOf(t, ticket)
		for name, bad := range map[string]string{
			"cut": text[:len(text)-1], "changed": strings.Replace(text, text[20:22], "AA", 1), "too long": text + strings.Repeat("A", 300),
			"another kind": "illock1." + text, "a token alone": "x:1",
		} {
			kept := ticket
			err := kept.UnmarshalText([]byte(bad))
			if !errors.Is(err, idempotency.ErrTicketMalformed) || kept != ticket {
				t.Errorf("%s: %v; want ErrTicketMalformed, and the Ticket as it was", name, err)
			} else if strings.Contains(err.Error(), bad) {
				t.Errorf("%s: the error shows the text: %v", name, err)
			}
		}
	})
}

func FuzzTicket(f *testing.F) {
	f.Add("ilclaim1.2HJbisQICv0bs6X6bPLqnWECvzKSLVr1u00LxMFGVUZAf6_U-xelP20U5SHNX6jZwej1f3ZGI-vfBDnFrh9t4WgBMmRjNjExNDczNjJmNmI0YzRhMTI3YTkxYmQ3MzE1N2I6Md0s0TM")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		var ticket idempotency.Ticket
		if err := ticket.UnmarshalText([]byte(text)); err != nil {
			if ticket != (idempotency.Ticket{}) || !errors.Is(err, idempotency.ErrTicketMalformed) {
				t.Errorf("%q: %v, and %v", text, ticket, err)
			}
			return
		}
		if again := textOf(t, ticket); again != text {
			t.Errorf("%q and %q are one ticket", text, again)
		}
	})
}
