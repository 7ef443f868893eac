package steplog_test

import (
	"reflect"
	"testing"

	"github.com/interlock-go/interlock/core/internal/steplog"
)

func TestATextIsReadAsItWasWritten(t *testing.T) {
	entries := []steplog.Entry{
		{steplog.Origin, "payments", "h\x00"}, {steplog.Done, "charge", `{"id":7}`}, {steplog.Opened, "book", ""}, {steplog.Bare, "book", ""},
	}
	var log []byte
	for i, e := range entries {
		before := len(log)
		log = steplog.Append(log, e)
		if size := steplog.Size(e.Name, len(e.Payload)); len(log)-before > size {
			t.Errorf("entry %d has %d bytes, Size said at most %d", i, len(log)-before, size)
		}
	}
	got, err := steplog.Read(string(log))
	if err != nil || !reflect.DeepEqual(got, entries) {
		t.Fatalf("Read: %v, %v; want %v", got, err, entries)
	}
	for i := range log {
		damaged := append([]byte(nil), log...)
		damaged[i] ^= 0x10
		if got, err := steplog.Read(string(damaged)); err == nil {
			t.Errorf("byte %d changed: read as %v", i, got)
		}
		if got, err := steplog.Read(string(log[:i])); err == nil && len(got) == len(entries) {
			t.Errorf("cut after %d bytes: read as the whole", i)
		}
	}
}
