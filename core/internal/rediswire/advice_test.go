package rediswire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// reply is the error that a server answers.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// Logs have the root cause of an error: a hint that only stands around the root cause would
// reach callers in code, and no operator of a service.
func TestWhatToDoAboutAnAnswerIsTheRootCause(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		sentinel error
		says     string
	}{
		"an old server": {recent("6.3.4"), driver.ErrConfig, "6.3.4"},
		"a proxy that wants literal commands": {
			Wrap(reply("ERR bad lua script for redis cluster, first parameter")), driver.ErrUnavailable, "script_check_enable",
		},
		"a right that the user lacks": {
			Wrap(reply("NOPERM User interlock has no permissions to run the 'evalsha' command")), driver.ErrUnavailable, "the rule is +evalsha",
		},
		"a time limit of the store": {Wrap(context.DeadlineExceeded), driver.ErrUnavailable, "no answer in time"},
	} {
		if root := observe.RootCause(c.err).Error(); !errors.Is(c.err, c.sentinel) || !strings.Contains(root, c.says) {
			t.Errorf("%s: %v: its root cause is %q; want %q in it", name, c.err, root, c.says)
		}
		if errors.Is(c.err, context.DeadlineExceeded) {
			t.Errorf("%s: it looks like the deadline of the caller", name)
		}
	}
}
