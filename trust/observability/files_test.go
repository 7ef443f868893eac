//go:build long

package observability

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	runbookFile   = "../../docs/operations.md"
)

// rule is a recording rule or an alert.
type rule struct {
	Record      string
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
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
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// recorded checks the recording rules, and adds what they record to what is known.
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
			if seen[r.Alert] {
				t.Error("the name is there twice")
			}
			seen[r.Alert] = true
			if r.For == "" {
				t.Error("does not say for how long (for)")
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("severity %q", s)
			}
			for _, annotation := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[annotation] == "" {
					t.Errorf("has no %s", annotation)
				}
			}
			for _, text := range r.Annotations {
				for _, m := range labelInText.FindAllStringSubmatch(text, -1) {
					if !labels.has(m[1]) {
						t.Errorf("%q: there is no label %s", text, m[1])
					}
				}
			}
			for _, label := range []string{"$labels.interlock_rule", "$labels.instance"} {
				if !strings.Contains(r.Annotations["summary"], label) {
					t.Errorf("the summary does not have %s", label)
				}
			}
			const document = "https://github.com/interlock-go/interlock/blob/main/docs/operations.md#"
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

// dashboard is what the tests read of one.
type dashboard struct {
	UID        string
	Title      string
	Templating struct{ List []variable }
	Panels     []panel
	Annotations,
	Links any
}

type variable struct {
	Name, Type, Description, AllValue string
	IncludeAll                        bool
	Query                             any
	Datasource                        source
}

type source struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []target
}

type target struct {
	RefID, Expr, LegendFormat string
	Instant, Range            bool
	Datasource                source
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// variables are the values of a dashboard's variables. Grafana joins several values by
// a bar, and All is what the variable says.
type variables map[string]string

// expand puts the variables into a query.
func (v variables) expand(query string) string {
	var pairs []string
	// The longer name first: $rate is the beginning of $rate_interval.
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(v))) {
		pairs = append(pairs, "${"+name+"}", v[name], "$"+name, v[name])
	}
	return strings.NewReplacer(pairs...).Replace(query)
}

// example has a value for each variable that the test of names needs none in particular
// for.
var example = variables{
	"job": "payments", "instance": "one", "rule": "rare", "__rate_interval": "1m", "__range": "1h",
}

var (
	labelInLegend = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues   = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

func TestTheDashboardShowsMetricsAndLabelsThatAreEmitted(t *testing.T) {
	known := emitted(t)
	d := readDashboard(t)
	queries := 0
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries++
			query := example.expand(q.Expr)
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
		query, _ := v.Query.(map[string]any)["query"].(string)
		m := labelValues.FindStringSubmatch(query)
		if m == nil {
			t.Errorf("variable %s: query %q", v.Name, query)
			continue
		}
		if labels, err := check(known, example.expand(m[1])); err != nil || !labels.has(m[2]) {
			t.Errorf("variable %s: %v; label %s of %q", v.Name, err, m[2], slices.Sorted(maps.Keys(labels)))
		}
	}
}

func TestTheDashboardCanBeImportedAndReadWithoutItsAuthor(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" {
		t.Error("has no uid or no title")
	}
	all := source{"prometheus", "${datasource}"}
	names := make(map[string]string)
	for _, v := range d.Templating.List {
		names[v.Name] = v.Type
		if v.Description == "" {
			t.Errorf("variable %s has no description", v.Name)
		}
		// A lock without a name has no label: all is everything, not all that there is.
		if v.Type == "query" && (!v.IncludeAll || v.AllValue != ".*" || v.Datasource != all) {
			t.Errorf("variable %s: %+v", v.Name, v)
		}
	}
	if want := map[string]string{"datasource": "datasource", "job": "query", "instance": "query", "rule": "query"}; !maps.Equal(names, want) {
		t.Errorf("variables %v; want %v", names, want)
	}
	ids, cells := make(map[int]bool), make(map[string]string)
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				cell := fmt.Sprint(x, ",", y)
				if cells[cell] != "" || x >= 24 {
					t.Errorf("%s covers %q, or is beside the grid", p.Title, cells[cell])
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource != all || len(p.Targets) == 0 {
			t.Errorf("panel %d %q has no title, description, unit, queries, or the data source %v", p.ID, p.Title, p.Datasource)
		}
		for _, q := range p.Targets {
			if q.Datasource != all || q.LegendFormat == "" || q.Instant == q.Range || !strings.Contains(q.Expr, "$job") {
				t.Errorf("%s: %+v", p.Title, q)
			}
		}
	}
}

// The text of a panel says which alerts watch it.
func TestThePanelsNameAlertsThatExist(t *testing.T) {
	var alerts []string
	for _, r := range rules(t) {
		if r.Alert != "" {
			alerts = append(alerts, r.Alert)
		}
	}
	named := make(map[string]bool)
	word := regexp.MustCompile(`\bInterlock[A-Z]\w+`)
	for _, p := range readDashboard(t).Panels {
		for _, name := range word.FindAllString(p.Description, -1) {
			named[name] = true
			if !slices.Contains(alerts, name) {
				t.Errorf("%s: there is no alert %s", p.Title, name)
			}
		}
	}
	for _, alert := range alerts {
		if !named[alert] {
			t.Errorf("no panel of %s belongs to the alert %s", filepath.Base(dashboardFile), alert)
		}
	}
}
