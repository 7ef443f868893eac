//go:build long

package observability

import (
	"errors"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// queryParser reads PromQL. The functions and aggregations that are experimental are not
// accepted: the oldest Prometheus that users have does not know them.
var queryParser = parser.NewParser(parser.Options{})

// nameLabel is the label that Prometheus keeps a metric's name in.
const nameLabel = "__name__"

// checker infers which labels the result of a query has, and notes each metric, label and
// value in it that is not among the known ones.
type checker struct {
	known map[string]metricLabels // emitted, or recorded by a rule
	bad   []error
}

// check returns the labels of the result of a query, and what is wrong with it.
func check(known map[string]metricLabels, query string) (metricLabels, error) {
	expr, err := queryParser.ParseExpr(query)
	if err != nil {
		return nil, err
	}
	c := &checker{known: known}
	result := c.labels(expr)
	return result, errors.Join(c.bad...)
}

func (c *checker) complain(format string, args ...any) {
	c.bad = append(c.bad, fmt.Errorf(format, args...))
}

// labels returns the labels that the result of an expression can have; nil for a scalar.
func (c *checker) labels(expr parser.Expr) metricLabels {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.MatrixSelector:
		return c.labels(e.VectorSelector)
	case *parser.ParenExpr:
		return c.labels(e.Expr)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return nil
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.Call:
		return c.call(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	}
	c.complain("%s: the test does not know a %T", expr, expr)
	return nil
}

// selector looks up the metrics that a selector names.
func (c *checker) selector(s *parser.VectorSelector) metricLabels {
	all := metricLabels{}
	for _, name := range c.names(s) {
		known, ok := c.known[name]
		if !ok {
			c.complain("no metric is called %s", name)
			continue
		}
		for label, values := range known {
			for value := range values {
				all.add(label, value)
			}
		}
	}
	for _, m := range s.LabelMatchers {
		if m.Name == nameLabel {
			continue
		}
		if !all.has(m.Name) {
			c.complain("%s has no label %s", s, m.Name)
			continue
		}
		if bounded := m.Name == "interlock_outcome" || m.Name == "interlock_loss_reason" || m.Name == "interlock_kind" || m.Name == "status"; !bounded {
			continue
		}
		for _, value := range c.alternatives(m) {
			if value != "" && !all[m.Name][value] {
				c.complain("%s is never %q in %s", m.Name, value, s)
			}
		}
	}
	return all
}

// names returns the names of a selector's metrics.
func (c *checker) names(s *parser.VectorSelector) []string {
	for _, m := range s.LabelMatchers {
		if m.Name == nameLabel {
			return c.alternatives(m)
		}
	}
	c.complain("%s names no metric", s)
	return nil
}

// alternatives returns the texts that a matcher names: one, or the words of a list in a
// regular expression, which must be that simple.
func (c *checker) alternatives(m *labels.Matcher) []string {
	if m.Type == labels.MatchEqual || m.Type == labels.MatchNotEqual {
		return []string{m.Value}
	}
	words := strings.Split(m.Value, "|")
	for _, word := range words {
		if re, err := syntax.Parse(word, syntax.Perl); err != nil || re.Op != syntax.OpLiteral {
			c.complain("%s: %q is not a word", m, word)
		}
	}
	return words
}

func (c *checker) aggregate(e *parser.AggregateExpr) metricLabels {
	inner := c.labels(e.Expr)
	if e.Without {
		c.complain("%s: name the labels that are kept; exporters add others", e)
		return nil
	}
	return c.keep(e, inner, e.Grouping)
}

// keep returns the named labels of a result.
func (c *checker) keep(at parser.Expr, inner metricLabels, names []string) metricLabels {
	kept := metricLabels{}
	for _, name := range names {
		if !inner.has(name) {
			c.complain("%s: there is no label %s, only %q", at, name, slices.Sorted(maps.Keys(inner)))
			continue
		}
		kept[name] = inner[name]
	}
	return kept
}

func (c *checker) call(e *parser.Call) metricLabels {
	all := metricLabels{}
	for _, arg := range e.Args {
		maps.Copy(all, c.labels(arg))
	}
	switch e.Func.Name {
	case "rate", "increase", "max_over_time", "vector":
	case "histogram_quantile":
		if !all.has("le") {
			c.complain("%s: a quantile without buckets", e)
		}
		delete(all, "le")
	case "label_replace":
		text := func(i int) string { return e.Args[i].(*parser.StringLiteral).Val }
		label, value, source := text(1), text(2), text(3)
		if source != "" && !all.has(source) {
			c.complain("%s: there is no label %s", e, source)
		}
		if source != "" {
			for word := range strings.SplitSeq(text(4), "|") {
				if !all[source][word] {
					c.complain("%s is never %q in %s", source, word, e.Args[0])
				}
			}
		}
		values := maps.Clone(all[label])
		if values == nil {
			values = make(map[string]bool)
		}
		values[value] = true
		all[label] = values
	default:
		c.complain("the test does not know the function %s", e.Func.Name)
	}
	return all
}

func (c *checker) binary(e *parser.BinaryExpr) metricLabels {
	left, right := c.labels(e.LHS), c.labels(e.RHS)
	switch {
	case e.Op == parser.LOR:
		all := metricLabels{}
		for _, side := range []metricLabels{left, right} {
			for label, values := range side {
				for value := range values {
					all.add(label, value)
				}
			}
		}
		return all
	case e.Op == parser.LUNLESS, e.Op == parser.LAND, right == nil: // or a comparison with a number
		return left
	case left == nil:
		return right
	case e.VectorMatching == nil || !e.VectorMatching.On:
		// All labels have to be the same on both sides.
		if !right.has(slices.Collect(maps.Keys(left))...) || !left.has(slices.Collect(maps.Keys(right))...) {
			c.complain("%s: the sides have the labels %q and %q", e, slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(right)))
		}
		return left
	}
	on := c.keep(e, left, e.VectorMatching.MatchingLabels)
	c.keep(e, right, e.VectorMatching.MatchingLabels)
	if e.VectorMatching.Card == parser.CardManyToOne {
		return left
	}
	return on
}

// A checker that never complains would look the same as right queries.
func TestTheCheckerFindsWhatIsWrongWithAQuery(t *testing.T) {
	known := map[string]metricLabels{"m_total": {}, "b_bucket": {}}
	for _, name := range []string{"m_total", "b_bucket"} {
		known[name].add("job", "")
		known[name].add("interlock_rule", "")
		known[name].add("interlock_outcome", "held")
	}
	known["b_bucket"].add("le", "")
	for query, want := range map[string]string{
		`sum by (job) (rate(m_total{interlock_outcome=~"held"}[5m]))`:              "",
		`histogram_quantile(0.9, sum by (le) (rate(b_bucket[5m])))`:                "",
		`sum by (job) (m_total) / on (job) sum by (job, interlock_rule) (m_total)`: "",
		`sum by (status) (label_replace(m_total, "status", "1", "job", ""))`:       "",
		`{__name__=~"m_total|b_bucket", job="x"}`:                                  "",
		`n_total`:                                 "no metric is called n_total",
		`{__name__=~"m_total|n_total"}`:           "no metric is called n_total",
		`{job="x"}`:                               "names no metric",
		`m_total{rule="x"}`:                       "no label rule",
		`m_total{interlock_outcome="helt"}`:       `never "helt"`,
		`m_total{interlock_outcome=~"held|helt"}`: `never "helt"`,
		`m_total{interlock_outcome=~"he.+"}`:      "is not a word",
		`sum by (rule) (m_total)`:                 "there is no label rule",
		`sum by (job) (m_total) / on (rule) sum by (job) (m_total)`:                       "there is no label rule",
		`sum by (job) (m_total) / sum by (interlock_rule) (m_total)`:                      "the sides have the labels",
		`sum without (job) (m_total)`:                                                     "name the labels that are kept",
		`histogram_quantile(0.9, sum by (job) (rate(b_bucket[5m])))`:                      "without buckets",
		`label_replace(m_total, "status", "1", "interlock_outcome", "held|helt")`:         `never "helt"`,
		`label_replace(m_total, "status", "1", "rule", "held")`:                           "no label rule",
		`sum by (job) (label_replace(m_total, "x", "1", "", "")) or sum by (x) (m_total)`: "there is no label x",
		`absent(m_total)`:       "does not know the function",
		`-m_total`:              "does not know a",
		`sum by (job (m_total)`: "parse error",
	} {
		_, err := check(known, query)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", query, err, want)
		}
	}
	if got, _ := check(known, `histogram_quantile(0.9, sum by (le, job) (rate(b_bucket[5m]))) or vector(0)`); !got.has("job") || got.has("le") {
		t.Errorf("a quantile has the labels %v", got)
	}
}
