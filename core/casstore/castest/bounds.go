package castest

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/interlock-go/interlock/core/casstore"
)

// most is the maximum number of conditions, of operations with reads and lists, and of names in Else.
const most = 128

// name is what a name consists of.
var name = regexp.MustCompile(`^[A-Za-z0-9_\-~%:]+(/[A-Za-z0-9_\-~%:]+)*$`)

// keepsBounds panics if a transaction has more than the documents of [casstore.Txn] and [casstore.Server] allow.
func keepsBounds(txn casstore.Txn) {
	if len(txn.If) > most || len(txn.Then)+len(txn.Read)+len(txn.List) > most || len(txn.Else) > most {
		panic(fmt.Sprintf("castest: a transaction of %d conditions, %d operations, %d reads, %d lists and %d names in Else; at most %d are allowed",
			len(txn.If), len(txn.Then), len(txn.Read), len(txn.List), len(txn.Else), most))
	}
	seen := map[string]bool{}
	for _, c := range txn.If {
		if seen[c.Name] {
			panic("castest: a transaction compares " + c.Name + " twice")
		}
		seen[c.Name] = true
	}
	clear(seen)
	for _, op := range txn.Then {
		switch {
		case seen[op.Name]:
			panic("castest: a transaction writes " + op.Name + " twice, which servers refuse")
		case !name.MatchString(op.Name), len(op.Name) > 2<<10, len(op.Value) >= 16<<10, op.Delete && op.Value != "":
			panic(fmt.Sprintf("castest: the name %q, or its value of %d bytes, is not allowed", op.Name, len(op.Value)))
		}
		seen[op.Name] = true
	}
	for _, r := range txn.List {
		if !strings.HasSuffix(r.Prefix, "/") {
			panic("castest: the prefix " + r.Prefix + " has no slash at its end")
		}
	}
}
