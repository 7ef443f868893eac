// Package drawn notes which fields of a request the random tests of a store draw, so that a field
// that is new does not stay untested. It is for tests.
package drawn

import (
	"reflect"
	"slices"
	"sync"
	"testing"
)

// Fields are the fields of T that had another value than zero in some request. The zero value is
// ready. It is safe for concurrent use.
type Fields[T any] struct {
	mu    sync.Mutex
	drawn map[string]bool
}

// Note notes a request.
func (f *Fields[T]) Note(request T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drawn == nil {
		f.drawn = map[string]bool{}
	}
	for field, value := range reflect.ValueOf(request).Fields() {
		if !value.IsZero() {
			f.drawn[field.Name] = true
		}
	}
}

// WantAll fails the test for each field that no request had, except the named fields. It
// also fails for a named field that was drawn, or does not exist.
func (f *Fields[T]) WantAll(tb testing.TB, without ...string) {
	tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := reflect.TypeFor[T]()
	for i := range all.NumField() {
		name := all.Field(i).Name
		if drawn := f.drawn[name]; drawn == slices.Contains(without, name) {
			tb.Errorf("%s.%s was drawn: %v; want each field drawn but for %q", all, name, drawn, without)
		}
	}
	for _, name := range without {
		if _, ok := all.FieldByName(name); !ok {
			tb.Errorf("%s has no field %s; want the fields that are not drawn", all, name)
		}
	}
}
