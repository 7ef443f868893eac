package rediswire

import "fmt"

// numbered checks the number in an answer of line.lua, and returns the answer as acquire.lua gives
// it; nil if the caller must not wait.
func (m *model) numbered(c asked, reply any) (plain any, number int64, err error) {
	list, _ := reply.([]any)
	n := numbers(list)
	switch len(list) {
	case 1:
		if c.number == 0 || c.number >= m.newest || n[0] != 0 {
			return nil, 0, fmt.Errorf("answer %v to the number %d of %d", list, c.number, m.newest)
		}
		return nil, 0, nil
	case 3:
		if plain, number = n[0], n[1]; n[2] > 0 {
			plain = []any{n[0], n[2]}
		}
	case 4:
		plain, number = list[:3], n[3]
	default:
		return nil, 0, fmt.Errorf("answer %v", reply)
	}
	switch {
	case m.holder == c.owner && m.exclusive != nil && n[0] == m.exclusive.token: // repeated
	case c.number == 0 && number <= m.newest:
		return plain, number, fmt.Errorf("the number %d after %d", number, m.newest)
	case c.number != 0 && (number != c.number || number < m.newest):
		return plain, number, fmt.Errorf("the number %d of a caller with %d; the last is %d", number, c.number, m.newest)
	default:
		m.newest = number
	}
	return plain, number, nil
}

// roomy takes a grant under a clock behind apart, and returns the token and how many follow that
// are never minted.
func roomy(reply any) (token any, room int64) {
	if list, _ := reply.([]any); len(list) == 2 {
		return list[0], numbers(list)[1]
	}
	return reply, 0
}
