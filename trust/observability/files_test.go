//go:build long

package observability

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/httpx"
)

const (
	dashboardFile = "../../docs/observability/interlock.dashboard.json"
	rulesFile     = "../../docs/observability/interlock.rules.yaml"
	runbookFile   = "../../docs/runbook.md"
)

// rule is a recording rule or an alert.
type rule struct {
	Record      string
	Alert       string
	Expr        string
	Annotations map[string]string
}

// rules reads the rules, in their order.
func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// recorded checks the recording rules, and adds their results to the known metrics.
func recorded(t *testing.T, known map[string]metricLabels) map[string]metricLabels {
	t.Helper()
	known = maps.Clone(known)
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		labels, err := check(known, r.Expr)
		if err != nil {
			t.Errorf("%s: %v", r.Record, err)
		}
		if !labels.has("job", "instance", "interlock_rule") {
			t.Errorf("%s has the labels %q", r.Record, slices.Sorted(maps.Keys(labels)))
		}
		known[r.Record] = labels
	}
	return known
}

var labelInText = regexp.MustCompile(`\$labels\.(\w+)`)

func TestTheAlertsNameWhatExistsAndWhereItIsExplained(t *testing.T) {
	known := recorded(t, emitted(t))
	runbook := anchors(t)
	seen := make(map[string]bool)
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		t.Run(r.Alert, func(t *testing.T) {
			labels, err := check(known, r.Expr)
			if err != nil {
				t.Error(err)
			}
			seen[r.Alert] = true
			for _, text := range r.Annotations {
				for _, m := range labelInText.FindAllStringSubmatch(text, -1) {
					if !labels.has(m[1]) {
						t.Errorf("%q: there is no label %s", text, m[1])
					}
				}
			}
			const document = "https://github.com/interlock-go/interlock/blob/main/docs/runbook.md#"
			anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], document)
			if !ok || anchor != strings.ToLower(r.Alert) || !slices.Contains(runbook, anchor) {
				t.Errorf("runbook %s: %s has no such heading", r.Annotations["runbook_url"], runbookFile)
			}
		})
	}
	for _, anchor := range runbook {
		if !strings.HasPrefix(anchor, "interlock") {
			continue
		}
		if !slices.ContainsFunc(rules(t), func(r rule) bool { return strings.ToLower(r.Alert) == anchor }) {
			t.Errorf("%s explains an alert %s that does not exist", runbookFile, anchor)
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d alerts: the test has gone blind", len(seen))
	}
}

// anchors are the anchors of the headings of the runbook's file.
func anchors(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(runbookFile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			all = append(all, strings.ReplaceAll(strings.ToLower(strings.TrimSpace(heading)), " ", "-"))
		}
	}
	return all
}

// The rules repeat which outcome is which status. The adapters have the table.
func TestTheRulesGiveAnOutcomeTheStatusThatClientsSee(t *testing.T) {
	var mapped string
	for _, r := range rules(t) {
		if r.Record == "interlock:answers:rate5m" {
			mapped = r.Expr
		}
	}
	in := make(map[string]string) // the outcomes of each status, joined
	for _, m := range regexp.MustCompile(`"status", "(\d+)", "interlock_outcome", "([^"]*)"`).FindAllStringSubmatch(mapped, -1) {
		in[m[1]] = m[2]
	}
	if len(in) != 3 {
		t.Fatalf("statuses %v in\n%s", in, mapped)
	}
	for _, why := range slices.Concat(lockReasons, keyReasons) {
		outcome := strings.ReplaceAll(string(why), "-", "_")
		status := 0
		if why != reason.Canceled { // no client is left to answer
			status, _ = httpx.Problem(&core.Refusal{Reason: why}, make(map[string][]string))
		}
		want := strconv.Itoa(status)
		if why == reason.Closing {
			want = "" // no alert at each deployment
		}
		for mappedTo, outcomes := range in {
			if has := slices.Contains(strings.Split(outcomes, "|"), outcome); has != (mappedTo == want) {
				t.Errorf("%s is %s for clients; among those of %s: %v", outcome, want, mappedTo, has)
			}
		}
	}
}

// dashboard is the part of a dashboard that the test reads.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type, AllValue string
			IncludeAll           bool
			Query                any
			Datasource           source
		}
	}
	Panels []struct {
		Type, Title string
		Datasource  source
		Targets     []struct {
			Expr, LegendFormat string
			Datasource         source
		}
	}
}

type source struct{ Type, UID string }

var userSource = source{"prometheus", "${datasource}"}

// example has a value for each variable. The longer name comes first: $rate is the
// beginning of $__rate_interval.
var example = strings.NewReplacer("$job", "payments", "$instance", "one", "$rule", "rare", "$__rate_interval", "1m", "$__range", "1h")

var (
	labelInLegend = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues   = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

func TestTheDashboardShowsMetricsAndLabelsThatAreEmitted(t *testing.T) {
	known := emitted(t)
	var d dashboard
	text, err := os.ReadFile(dashboardFile)
	if err = errors.Join(err, json.Unmarshal(text, &d)); err != nil {
		t.Fatal(err)
	}
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if base != "target_info" && !strings.Contains(string(text), base) {
			t.Errorf("no panel shows the metric %s", base)
		}
	}
	queries := 0
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries++
			if q.Datasource != userSource || p.Datasource != userSource || !strings.Contains(q.Expr, "$job") {
				t.Errorf("%s has another data source, or no $job: %s", p.Title, q.Expr)
			}
			query := example.Replace(q.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("%s: a variable is not known in %s", p.Title, query)
			}
			labels, err := check(known, query)
			if err != nil {
				t.Errorf("%s: %v", p.Title, err)
			}
			legend := labelInLegend.FindAllStringSubmatch(q.LegendFormat, -1)
			for _, m := range legend {
				if !labels.has(m[1]) {
					t.Errorf("%s: the legend %q has the label %s, the query %q", p.Title, q.LegendFormat, m[1], slices.Sorted(maps.Keys(labels)))
				}
			}
			if p.Type == "timeseries" && len(legend) != len(labels) {
				t.Errorf("%s: the legend %q does not tell series with the labels %q apart", p.Title, q.LegendFormat, slices.Sorted(maps.Keys(labels)))
			}
		}
	}
	if queries < 30 {
		t.Errorf("%d queries: the test has gone blind", queries)
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		// The longest queue has no label of a rule: all is everything, not all that there is.
		if !v.IncludeAll || v.AllValue != ".*" || v.Datasource != userSource {
			t.Errorf("variable %s: %+v", v.Name, v)
		}
		query, _ := v.Query.(map[string]any)["query"].(string)
		m := labelValues.FindStringSubmatch(query)
		if m == nil {
			t.Errorf("variable %s: query %q", v.Name, query)
			continue
		}
		if labels, err := check(known, example.Replace(m[1])); err != nil || !labels.has(m[2]) {
			t.Errorf("variable %s: %v; label %s of %q", v.Name, err, m[2], slices.Sorted(maps.Keys(labels)))
		}
	}
}
