package rediswire

import (
	"slices"
	"strings"
)

// What follows are lists of waiting lockers.

func isLocker(e string) bool { return !strings.HasPrefix(e, "+") && !strings.HasPrefix(e, "-") }

func ids(q string) []string {
	all := strings.Split(q, ",")
	for i, e := range all {
		all[i] = strings.TrimLeft(e, "+-")
	}
	return all
}

func uncalled(q string) string {
	return strings.TrimPrefix(strings.ReplaceAll(","+q, ",-", ",+"), ",")
}

func remove(q, id string) string {
	var left []string
	for e := range strings.SplitSeq(q, ",") {
		if strings.TrimLeft(e, "+-") != id {
			left = append(left, e)
		}
	}
	return strings.Join(left, ",")
}

// replace changes what a locker wants, or enters it at the end.
func replace(q, id, sign string) string {
	all := strings.Split(q, ",")
	if i := slices.Index(ids(q), id); i >= 0 {
		all[i] = sign + id
	} else if q == "" {
		return sign + id
	} else {
		all = append(all, sign+id)
	}
	return strings.Join(all, ",")
}

// before reports whether a locker is in the list before all others that want the lock.
func before(q, id string) bool {
	for e := range strings.SplitSeq(q, ",") {
		switch {
		case id != "" && strings.TrimLeft(e, "+-") == id:
			return true
		case isLocker(e):
			return false
		}
	}
	return false
}
