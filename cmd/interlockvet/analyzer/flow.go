package analyzer

import (
	"go/ast"

	"golang.org/x/tools/go/cfg"
)

// graph returns the flow of control in a function.
func (c *checker) graph(f function) *cfg.CFG { return cfg.New(f.body, c.mayReturn) }

// place is a node of a graph.
type place struct {
	block *cfg.Block
	index int
}

// placeOf finds the node of a graph that contains another node, not inside a function literal.
func placeOf(g *cfg.CFG, n ast.Node) (place, bool) {
	for _, b := range g.Blocks {
		if !b.Live {
			continue
		}
		for i, at := range b.Nodes {
			if at.Pos() <= n.Pos() && n.End() <= at.End() {
				return place{b, i}, true
			}
		}
	}
	return place{}, false
}

// reaches reports whether control can come from a place to a node without passing a barrier.
func reaches(from place, to ast.Node, barrier func(ast.Node) bool) bool {
	seen := map[*cfg.Block]bool{}
	var walk func(b *cfg.Block, at int) bool
	walk = func(b *cfg.Block, at int) bool {
		for _, n := range b.Nodes[at:] {
			if n.Pos() <= to.Pos() && to.End() <= n.End() {
				return true
			}
			if barrier != nil && barrier(n) {
				return false
			}
		}
		for _, next := range b.Succs {
			if !seen[next] {
				seen[next] = true
				if walk(next, 0) {
					return true
				}
			}
		}
		return false
	}
	return walk(from.block, from.index)
}
