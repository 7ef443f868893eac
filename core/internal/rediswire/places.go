package rediswire

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

//go:embed lua/enter.lua
var enterSource string

//go:embed lua/stay.lua
var staySource string

//go:embed lua/leave.lua
var leaveSource string

// The requests for a place have separate scripts. Acquire, Renew, Release and the
// reading of a refusal look at the kind once each (locks.go).
var (
	enterScript = forSeveral("enter", enterSource)
	stayScript  = forSeveral("stay", staySource)
	leaveScript = forSeveral("leave", leaveSource)
)

// placesOf returns what enter.lua gets for a request for a place: how many owners may
// have places (0 is any number), and how many tokens a grant makes.
func placesOf(ask *driver.AcquireRequest) (atMost, tokens int64, err error) {
	switch {
	case ask.Kind == driver.Shared:
		return 0, 1, nil
	case ask.Kind == driver.Permit && ask.AtMost >= 1:
		return int64(ask.AtMost), driver.Tokens, nil
	case ask.Kind == driver.Permit:
		return 0, 0, fmt.Errorf("%w: AtMost is %d: at least 1 owner must be allowed a permit", driver.ErrConfig, ask.AtMost)
	default:
		return 0, 0, fmt.Errorf("%w: unknown Kind %d", driver.ErrConfig, ask.Kind)
	}
}

// turnOf reads the list of a call: "*k,list" when k places are free, and else the list. Of anything else it
// makes the call that has the locker look.
func turnOf(text, id string) (c driver.Call, ok bool) {
	if !partial(text) {
		return driver.Waiters(text).Call(id, 0)
	}
	number, list, _ := strings.Cut(text[1:], ",")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || n == 0 || list == "" {
		return driver.Call{}, true
	}
	return driver.Waiters(list).Call(id, int(n))
}

// partial reports whether a message says that places are free, and the lock is not.
func partial(message string) bool { return strings.HasPrefix(message, "*") }
