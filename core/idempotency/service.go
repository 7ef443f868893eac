package idempotency

import (
	"strings"

	"github.com/interlock-go/interlock/core/internal/ident"
)

// Service names the service that owns the records, so that several services share a store and
// its locks, and not their records. Without it a gateway and the service that it calls look at
// one record if they get one key, and the service refuses the gateway's request
// ([reason.KeyReused]). All processes of a service give the same name: letters, digits, and
// "-", ".", "_". Operators call [Engine.Resolve] and [Engine.Forget] on an engine with the
// option. Records made under another name are not found. Default: no name.
//
//	engine, err := idempotency.New(store, idempotency.Service("ledger"), idempotency.Scope(user))
func Service(name string) Option {
	return func(c *config) {
		if name == "" || len(name) > 64 || strings.ContainsFunc(name, notInName) {
			c.fail("Service(%q): accepted are 1 to 64 letters, digits, and -._", name)
			return
		}
		c.service = name
	}
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._", r)
}

// ServiceScope returns the scope of a record under [Service], for tools that look at the
// records of a store. scope is what [Engine.Resolve] takes.
func ServiceScope(service, scope string) string {
	if service == "" {
		return scope
	}
	return "interlock service\x00" + service + "\x00" + scope // a name has no NUL
}

// record returns the name of the record of a key.
func (c *config) record(scope, key string) string {
	return ident.Record(ServiceScope(c.service, scope), key)
}
