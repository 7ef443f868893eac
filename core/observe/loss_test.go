package observe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

func TestHoweverALossIsWrittenItShowsHashesOnly(t *testing.T) {
	loss := observe.Loss{
		Key: "account/secret", Principal: "alice", Rule: "account/{id}", Route: "/accounts/{id}", Owner: "f00:1", Token: 7,
		Held: time.Second, Reason: observe.LossDeleted, Answered: "no",
		Err: fmt.Errorf("renewing %q: %w", "account/secret", driver.ErrDeleted),
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", loss.Key)
		fmt.Fprintf(&out, verb+"\n", []observe.Hashed{loss.Key})
		fmt.Fprintf(&out, verb+"\n", struct{ K observe.Hashed }{loss.Principal})
	}
	fmt.Fprintf(&out, "%#v %v %+v %s\n", loss.Key, loss, loss, loss)
	slog.New(slog.NewTextHandler(&out, nil)).Error("lost", "loss", loss, "key", loss.Key)
	slog.New(slog.NewJSONHandler(&out, nil)).Error("lost", "loss", loss, "key", loss.Key)
	if err := json.NewEncoder(&out).Encode([]any{loss, loss.Key, &loss.Principal}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, secret := range []string{"secret", "alice", fmt.Sprintf("%x", "secret"), fmt.Sprintf("%x", "alice")} {
		if strings.Contains(text, secret) {
			t.Errorf("shows %q:\n%s", secret, text)
		}
	}
	want := "lease lost: reason=deleted key_hash=" + observe.Hashed("account/secret").Hash() +
		" held=1s token=7 owner=f00:1 rule=account/{id} route=/accounts/{id} principal_hash=" + observe.Hashed("alice").Hash() +
		" answered=no error=interlock: not the owner of the lock"
	if got := loss.String(); got != want {
		t.Errorf("\n%s; want\n%s", got, want)
	}
	if !strings.Contains(text, "loss.key_hash="+observe.Hashed("account/secret").Hash()) || string(loss.Key) != "account/secret" {
		t.Errorf("the hash is missing:\n%s", text)
	}
	loss.Err = errors.New("WRONGTYPE of account/secret") // the server's own words
	if got := loss.String(); strings.Contains(got, "secret") {
		t.Errorf("shows the key: %s", got)
	}
}

func TestTheRootCauseIsWhatNothingElseIsWrappedIn(t *testing.T) {
	first, last := errors.New("first"), errors.New("last")
	for name, c := range map[string]struct{ err, want error }{
		"none":                {nil, nil},
		"itself":              {last, last},
		"wrapped twice":       {fmt.Errorf("a: %w", fmt.Errorf("b: %w", last)), last},
		"several, the last":   {fmt.Errorf("%w: %w", first, fmt.Errorf("a: %w", last)), last},
		"joined, the last":    {errors.Join(first, last), last},
		"wraps an empty list": {empty{}, empty{}},
	} {
		if got := observe.RootCause(c.err); got != c.want { //nolint:errorlint // the error itself, not one in its tree
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}

// empty is an error that wraps a list without errors.
type empty struct{}

func (empty) Error() string   { return "empty" }
func (empty) Unwrap() []error { return nil }
