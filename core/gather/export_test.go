package gather

// Lines returns the number of keys that the group remembers.
func (g *Group[Req, Res]) Lines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.lines)
}
