package core_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

// Package core does not import net/http, and so has the names of statuses itself.
func TestTheTitlesOfProblemsAreTheNamesOfTheirStatuses(t *testing.T) {
	for _, why := range reason.All() {
		status, body := (&core.Refusal{Reason: why}).HTTP(make(http.Header).Set)
		if status == 0 {
			continue
		}
		var problem struct{ Title string }
		if err := json.Unmarshal(body, &problem); err != nil || problem.Title != http.StatusText(status) {
			t.Errorf("%s: the title is %q, %v; want %q, the name of %d", why, problem.Title, err, http.StatusText(status), status)
		}
	}
}
