package gather

import "context"

// Lines returns the number of keys that the group remembers.
func (g *Group[Req, Res]) Lines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.lines)
}

// AsksWhenTaken reports whether a caller asks for the lock when another caller has taken its item since it decided to.
func (g *Group[Req, Res]) AsksWhenTaken(ctx context.Context, key string) bool {
	var req Req
	it := g.newItem(req, "")
	if g.bring(it, key, -1) != nil {
		return false
	}
	g.take(it)
	asks, _ := g.asks(ctx, it)
	return asks != nil
}
