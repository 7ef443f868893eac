//go:build long

package history

import (
	"path/filepath"
	"sync"
	"testing"
)

func TestALogKeepsWhatWasBegunAndEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := Create(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	begin := Now()
	var wg sync.WaitGroup
	for hold := range uint64(60) {
		wg.Go(func() {
			r := log.Begin(Record{Kind: Acquire, Hold: hold})
			if hold%2 == 0 { // the others are cut short
				r.Trust(r.Call+1, true)
				r.End(Done)
			}
		})
	}
	wg.Wait()
	// What is there is there without any closing.
	records, err := Load(path)
	if err != nil || len(records) != 60 {
		t.Fatalf("%d records, %v; want 60", len(records), err)
	}
	for _, r := range records {
		ended := r.Outcome == Done && r.Return >= r.Call && r.Trusted == r.Call+1 && r.Settled == 1
		cut := r.Outcome == Unknown && r.Return == 0 && r.Settled == 0
		if r.Kind != Acquire || r.Call < begin || ended != (r.Hold%2 == 0) || cut == ended {
			t.Errorf("read %+v", r)
		}
	}
	for range 40 {
		log.Begin(Record{Kind: Release})
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("took more records than it has room for")
			}
		}()
		log.Begin(Record{Kind: Release})
	}()
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if records, err := Load(path); err != nil || len(records) != 100 {
		t.Errorf("%d records, %v; want 100", len(records), err)
	}
}

func TestLoadRefusesWhatIsNoLog(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no error for a file that is not there")
	}
}
