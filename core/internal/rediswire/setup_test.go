package rediswire

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// go-redis closes a connection whose set-up returns an error, and uses one whose
// set-up does not: late answers would then be those of the next commands.
func TestASetUpWithoutItsAnswersIsAnError(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t, func(o *redis.Options) { o.ReadTimeout = 3 * time.Second })
	cn := rdb.Conn()
	defer cn.Close()
	if err := loadScripts(t.Context(), cn, scripts); err != nil {
		t.Fatalf("on a server that answers: %v", err)
	}
	srv.Pause(t)
	defer srv.Resume(t)
	if err := loadScripts(t.Context(), cn, scripts); err == nil {
		t.Error("a set-up whose answers did not come was taken for good")
	}
}

// Should replies ever get out of step, the milliseconds that a holder has left must
// not be taken for the token of a lock, nor a release for a renewal.
func TestTheReplyToAnotherCallIsNone(t *testing.T) {
	const token = int64(1_700_000_000_000_000)
	for name, c := range map[string]struct {
		reply any
		ok    bool
	}{
		"its own":                      {[]any{"acquire", token, []any{"holder", int64(29990), int64(1)}, "OOM"}, true},
		"a lock that is held":          {[]any{"holder", int64(29990), int64(1)}, false},
		"a call of another length":     {[]any{"acquire", token, token}, false},
		"a call of another script":     {[]any{"renew", int64(1), int64(1), int64(1)}, false},
		"a single reply":               {token, false},
		"nothing, as after a pipeline": {nil, false},
	} {
		for i := range 3 {
			val, err := acquireScript.part(c.reply, i, 3)
			if known := val != nil || err != nil; known != c.ok {
				t.Errorf("%s: part %d is %v, %v", name, i, val, err)
			}
		}
	}
	if _, err := acquireScript.part([]any{"acquire", token, "OOM command not allowed"}, 1, 2); fateOf(err) != refused {
		t.Errorf("the text of an error is %v", err)
	}
}
