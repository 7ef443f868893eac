package quorum

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The document says how long the pauses and the limits of the code are.
func TestTheDocumentHasTheTimesOfTheCode(t *testing.T) {
	text, err := os.ReadFile("../../docs/quorum.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("%d to %d ms at first, doubling to %d to %d ms",
			minSplit.Milliseconds()/2, 3*minSplit.Milliseconds()/2, maxSplit.Milliseconds()/2, 3*maxSplit.Milliseconds()/2),
		fmt.Sprintf("%d to %d ms, always less than a tenth", leastBudget.Milliseconds(), mostBudget.Milliseconds()),
		fmt.Sprintf("at least %d round trips long", budgetShare),
		map[int]string{4: "four times the recent time of a majority's answers"}[slowTrips],
		map[int]string{2: "after twice the time that its caller waits"}[keptFor],
	} {
		if want == "" || !strings.Contains(string(text), want) {
			t.Errorf("docs/quorum.md does not say %q", want)
		}
	}
}
