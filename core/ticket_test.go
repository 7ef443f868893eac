package core_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
)

// tickets makes a ticket of a lock and of a permit, for the longest key.
func tickets(t *testing.T) (all []core.Ticket) {
	t.Helper()
	l := newLocker(t, newStore())
	for _, opts := range [][]core.Option{nil, {core.Permits(1024)}} {
		all = append(all, handOver(t, held(t, l, t.Context(), strings.Repeat("\xff", 158), opts...), time.Minute))
		time.Sleep(2 * time.Minute)
	}
	return append(all, handOver(t, held(t, l, t.Context(), "account/42"), time.Minute))
}

func TestATicketIsATextThatComesBackWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ticket := range tickets(t) {
			text := ticket.Text()
			if len(text) > 300 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
				t.Errorf("the text has %d bytes: %s", len(text), text)
			}
			back, err := core.ParseTicket(text)
			if err != nil || back.Text() != text || back.Key() != ticket.Key() || back.Token() != ticket.Token() ||
				!back.Expires().Equal(ticket.Expires().Truncate(time.Millisecond)) {
				t.Errorf("%q comes back as %q: %v", text, back.Text(), err)
			}
			type message struct{ Ticket core.Ticket }
			var m message
			written, err := json.Marshal(message{ticket})
			if err = errors.Join(err, json.Unmarshal(written, &m)); err != nil || m.Ticket.Text() != text {
				t.Errorf("in JSON: %s, %v", written, err)
			}
		}
		if text := (core.Ticket{}).Text(); text != "" {
			t.Errorf("the text of no ticket is %q", text)
		}
		var none core.Ticket
		if err := none.UnmarshalText(nil); err != nil || !none.IsZero() {
			t.Errorf("an empty field makes %v, %v", none, err)
		}
	})
}

// A reader of a log must not be able to take a lock.
func TestATicketIsNotPrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ticket := range tickets(t) {
			body, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(ticket.Text(), "ilt1-"))
			if err != nil {
				t.Fatal(err)
			}
			secret := body[18:34]
			var log strings.Builder
			slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "ticket", ticket)
			type row struct{ hidden core.Ticket }
			shown := ticket.String() + log.String()
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				for _, v := range []any{ticket, &ticket, row{ticket}, &row{ticket}, []core.Ticket{ticket}} {
					shown += fmt.Sprintf(verb, v)
				}
			}
			for _, part := range []string{
				ticket.Text()[20:80], ticket.Key(), string(secret), hex.EncodeToString(secret), strings.Trim(fmt.Sprintf("%d", secret), "[]"),
			} {
				if strings.Contains(shown, part) {
					t.Errorf("a ticket is printed: %s has %q", shown, part)
				}
			}
		}
	})
}

func TestATicketThatWasCutOrChangedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ticket := range tickets(t) {
			text := ticket.Text()
			bad := []string{"", "x", "ilt1-", "ilt2-" + text[5:], text + "A", text + text, " " + text, text + "\n", text[:40] + "\n" + text[40:], strings.Repeat("A", 10_000)}
			for i := range text {
				bad = append(bad, text[:i], text[:i]+"A"+text[i+1:], text[:i]+"z"+text[i+1:], text[:i]+text[i+1:])
			}
			for _, wrong := range bad {
				if wrong == text {
					continue
				}
				if got, err := core.ParseTicket(wrong); !errors.Is(err, core.ErrTicket) || !got.IsZero() || strings.Contains(err.Error(), text[20:60]) {
					t.Errorf("%q is read: %v", wrong, err)
				}
			}
		}
	})
}

func FuzzParseTicket(f *testing.F) {
	f.Add("ilt1-")
	f.Add("ilt1-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		ticket, err := core.ParseTicket(text)
		switch {
		case err == nil && ticket.Text() != text:
			t.Errorf("%q comes back as %q", text, ticket.Text())
		case err != nil && (!errors.Is(err, core.ErrTicket) || !ticket.IsZero()):
			t.Errorf("%q reads as %v, %v; want an error that matches ErrTicket", text, ticket, err)
		}
	})
}
