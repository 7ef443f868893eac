package capture

import (
	"maps"
	"net/http"
	"slices"
)

// changes are the header fields in which after differs from before. A field that
// was removed has no values.
func changes(before, after http.Header) map[string][]string {
	changed := make(map[string][]string, len(after))
	for name, values := range after {
		if was, had := before[name]; !had || !slices.Equal(was, values) {
			changed[name] = values
		}
	}
	for name := range before {
		if _, has := after[name]; !has {
			changed[name] = nil
		}
	}
	return changed
}

// apply makes the changes of a handler, which has found the header as it was
// before, to the header that goes out. Middleware in front may have changed that
// while the handler ran (a session that sets its cookie on the writer it knows):
// these changes stay. Where both have changed one field, the handler's value
// counts, and of a field whose lines are independent of each other both remain.
func apply(header, before http.Header, changed map[string][]string) {
	for name, values := range changed {
		was, now := before[name], header[name]
		switch {
		case independent[name] && !slices.Equal(was, now) && startsWith(values, was):
			header[name] = slices.Concat(now, values[len(was):])
		case len(values) == 0:
			delete(header, name)
		default:
			header[name] = values
		}
	}
}

// independent are the fields to which several parties add lines of their own.
var independent = map[string]bool{"Set-Cookie": true, "Vary": true}

func startsWith(list, start []string) bool {
	return len(list) >= len(start) && slices.Equal(list[:len(start)], start)
}

// snapshot notes a header as it is. Middleware that adds values later appends to
// slices of its own.
func snapshot(header http.Header) http.Header { return maps.Clone(header) }
