package idempotency_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
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
		type inside struct{ ticket idempotency.Ticket }
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("handed over", "ticket", ticket, "pointer", &ticket)
		slog.New(slog.NewTextHandler(&log, nil)).Info("handed over", "ticket", ticket, "inside", inside{ticket})
		shown := log.String() + ticket.String() + fmt.Sprint(&ticket)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			for _, v := range []any{ticket, &ticket, inside{ticket}, &inside{ticket}, []idempotency.Ticket{ticket}, once.Along{Claim: ticket}} {
				shown += fmt.Sprintf(verb, v)
			}
		}
		body, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(textOf(t, ticket), "ilclaim1."))
		if err != nil {
			t.Fatal(err)
		}
		secret := body[66:82]
		token := w.record().Token
		for name, part := range map[string]string{
			"text": textOf(t, ticket), "token": token, "secret": string(secret), "secret in hexadecimal": hex.EncodeToString(secret),
			"secret as numbers": strings.Trim(fmt.Sprintf("%d", secret), "[]"),
		} {
			if strings.Contains(shown, part) {
				t.Errorf("a text that may be logged shows the %s of the ticket: %s", name, shown)
			}
		}
		if !strings.Contains(shown, "ticket of request") {
			t.Errorf("%s; want the beginning of the name of the record", shown)
		}
	})
}

// The ticket of another request, and all that the store has of a request, do not help to make its ticket.
func TestATicketCannotBeMadeFromAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		texts := make(map[string]bool)
		for i := range 3 {
			ticket := w.handed(e, fmt.Sprint("k", i))
			body, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(textOf(t, ticket), "ilclaim1."))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range w.store.Records() {
				if bytes.Contains(body, []byte(r.Token)) || len(r.Token) != 32 {
					t.Errorf("the token of a record is %q; want the hash of a secret, which is not in the ticket %q", r.Token, body)
				}
			}
			for n := range 16 - 3 { // 4 bytes that are equal by chance come once in four billion
				part := string(body[66+n : 66+n+4])
				if texts[part] {
					t.Errorf("the secrets of two tickets of one engine have %x in common; want all bits to be random", part)
				}
				texts[part] = true
			}
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
	f.Add("ilclaim1.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9kZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5_gIGCg2gByMnKy8zNzs_Q0dLT1NXW10JWobg")
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
