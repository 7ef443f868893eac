//go:build long

package observability

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

// queryParser reads PromQL. The functions and aggregations that are experimental are not
// accepted: the oldest Prometheus that users have does not know them.
var queryParser = parser.NewParser(parser.Options{})

// checker infers which labels the result of a query has, and notes each metric, label and
// value in it that is not among the known ones.
type checker struct {
	known map[string]metricLabels // emitted, or recorded by a rule
	bad   []error
}

// check returns the labels of the result of a query, and its mistakes.
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

// labels returns the labels that the result of an expression can have.
func (c *checker) labels(node parser.Node) metricLabels {
	all := metricLabels{}
	var parts []metricLabels
	for part := range parser.ChildrenIter(node) {
		inner := c.labels(part)
		parts = append(parts, inner)
		for label, values := range inner {
			for value := range values {
				all.add(label, value)
			}
		}
	}
	switch e := node.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.AggregateExpr:
		return c.keep(e, all, e.Grouping)
	case *parser.Call:
		switch e.Func.Name {
		case "histogram_quantile":
			return c.keep(e, all, slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return name == "le" }))
		case "label_replace":
			text := func(i int) string { return e.Args[i].(*parser.StringLiteral).Val }
			if source := text(3); source != "" {
				c.values(e, all, source, strings.Split(text(4), "|"))
			}
			all.add(text(1), text(2))
		}
	case *parser.BinaryExpr:
		if e.VectorMatching != nil && e.VectorMatching.On {
			c.keep(e, parts[0], e.VectorMatching.MatchingLabels)
			c.keep(e, parts[1], e.VectorMatching.MatchingLabels)
		}
		if e.Op != parser.LOR && len(parts[0]) > 0 {
			return parts[0]
		}
	}
	return all
}

// selector looks up the metrics that a selector names, with its labels and their values.
func (c *checker) selector(s *parser.VectorSelector) metricLabels {
	all := metricLabels{}
	for _, m := range s.LabelMatchers {
		if m.Name != "__name__" {
			continue
		}
		for name := range strings.SplitSeq(m.Value, "|") {
			if c.known[name] == nil {
				c.complain("no metric is called %s", name)
			}
			maps.Copy(all, c.known[name])
		}
	}
	for _, m := range s.LabelMatchers {
		if m.Name != "__name__" {
			c.values(s, all, m.Name, strings.Split(m.Value, "|"))
		}
	}
	return all
}

// values looks up a label, and the values of a label that has a fixed set of them.
func (c *checker) values(at parser.Node, all metricLabels, label string, values []string) {
	if !all.has(label) {
		c.complain("%s has no label %s", at, label)
		return
	}
	if !slices.Contains([]string{"interlock_outcome", "interlock_loss_reason", "interlock_kind", "status", "le"}, label) {
		return
	}
	for _, value := range values {
		if value != "" && !all[label][value] {
			c.complain("%s is never %q in %s", label, value, at)
		}
	}
}

// keep returns the named labels of a result.
func (c *checker) keep(at parser.Node, all metricLabels, names []string) metricLabels {
	kept := metricLabels{}
	for _, name := range names {
		if !all.has(name) {
			c.complain("%s: there is no label %s", at, name)
			continue
		}
		kept[name] = all[name]
	}
	return kept
}
