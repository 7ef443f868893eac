package core

import (
	"context"
	"strings"
)

// guardConfig holds the options that only a guard has.
type guardConfig struct {
	more       []string
	keyFunc    func(context.Context, Request) ([]string, error)
	funcs      []namedFunc
	failOpen   bool
	readBody   bool // before the lock, at most bodyLimit bytes
	bodyLimit  int64
	check      bool
	shareReads bool
	limit      *limit
	permits    *permits // of AtMostFunc

	answerFirst bool
	unfenced    bool // of Fenced
}

// And adds a template to a guard: a request then takes the locks of all its keys or
// none. A transfer locks both of its accounts with
//
//	Serialize(locker, "account/{from}", And("account/{to}"))
//
// A transfer in the opposite direction does not deadlock with it, because keys are
// taken in sorted order, each once ([Locker.LockAll]).
func And(template string) GuardOption {
	return guardOption(func(c *config) { c.guard.more = append(c.guard.more, template) })
}

// ShareReads lets requests that only read share the lock ([Shared]), while all others
// hold it alone: one rule covers a resource. In HTTP those are the safe methods (RFC
// 9110, 9.2.1): GET, HEAD, OPTIONS, TRACE and QUERY. In gRPC no request says it; give
// its method a rule made by [Share], or an annotation with mode: SHARED.
func ShareReads() GuardOption {
	return guardOption(func(c *config) { c.guard.shareReads = true })
}

// KeyFunc makes the keys of a guard in code, in addition to the keys of its
// templates. The template given to [Serialize] may then be empty; give the guard a
// [Name]. The guard uses the keys as they are: build them with [Key]. f runs for
// many requests at the same time. It may write to the slices that it gets from req.
//
// An error of f that matches [ErrKey] refuses the request as a mistake of the
// client. Any other error is the server's ([reason.Internal]); the rendering option
// of the adapter sees it in [Refusal.Err]. If f returns no key, that is ErrKey: a
// KeyFunc cannot ask for no lock.
func KeyFunc(f func(ctx context.Context, req Request) ([]string, error)) GuardOption {
	return guardOption(func(c *config) {
		if f == nil {
			c.fail("KeyFunc(nil): must not be nil")
			return
		}
		c.guard.keyFunc = f
	})
}

// ContextFunc registers f for {ctx.name} in templates. Use it for a value that
// earlier middleware has put into the context, such as the principal. [RequestFunc]
// says what f may return, and where f finds what gin and echo keep in their own
// contexts. A name has letters, digits, "_", "-" and dots. Of several functions
// with one name the last one counts. For [New], where it serves all guards, or for
// a guard.
func ContextFunc(name string, f RequestFunc) RequestOption {
	return requestOption(func(c *config) {
		bad := func(r rune) bool { return r != '.' && !nameRune(r) }
		switch {
		case name == "" || strings.ContainsFunc(name, bad):
			c.fail("ContextFunc(%q): accepted in a name are letters, digits, _, - and dots between them", name)
		case f == nil:
			c.fail("ContextFunc(%q, nil): must not be nil", name)
		default:
			// A guard must not append into the array that the locker's other
			// guards share.
			c.guard.funcs = append(c.guard.funcs[:len(c.guard.funcs):len(c.guard.funcs)], namedFunc{name, f})
		}
	})
}

// FailOpen lets requests through without their lock when the store cannot be
// reached ([reason.Unavailable]). Then nothing excludes other requests: use it where
// a lock saves effort, never where it protects money.
//
// Each such request is counted ([observe.Observation.Bypassed]). A warning is logged
// through [slog.Default], at most once a minute for a guard. The handler sees it
// from [LeaseFromContext], which then has no lease of the guard. Default: off; such
// requests are refused.
func FailOpen() GuardOption {
	return guardOption(func(c *config) { c.guard.failOpen = true })
}

// CheckAnswer asks the store whether the lock is still held, just before the answer
// of a success leaves (in HTTP a status below 400, in gRPC OK). If the lock is not
// held, the client gets the refusal for a lost lease instead ([reason.Lost]).
// Without this option the client gets that refusal only if the handler gave no
// answer. A handler that writes to a database uses [Commit] for the same check on
// its transaction.
//
// CheckAnswer costs one round trip for each request. It does not check the answers
// of failures. Of an answer in several parts it holds back only the beginning, of a
// stream in gRPC only the end. If the store cannot be asked, the answer leaves
// unconfirmed as long as the lease is valid by this process's clock.
//
// Default: off; a success that a handler answers after the loss is sent, and
// [OnLost] and the [observe.Observer] get the loss. For [New], where it
// serves all guards, or for a guard.
func CheckAnswer() RequestOption {
	return requestOption(func(c *config) { c.guard.check = true })
}
