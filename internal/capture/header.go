package capture

import (
	"net/http"
	"slices"
)

// changes are the header fields that differ between before and after. A field that was
// removed has no values.
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

// apply makes the changes of a handler, which lead from before to after, to the
// header that goes out. Middleware in front may have changed that while the
// handler ran (a session that sets its cookie on the writer it knows): these
// changes stay. Where both have changed one field, the handler's value counts, and
// of a field with independent lines both remain.
func apply(header, before, after http.Header) {
	for name, values := range changes(before, after) {
		was, now := before[name], header[name]
		_, there := after[name]
		switch {
		case independent[name] && !slices.Equal(was, now) && startsWith(values, was):
			header[name] = slices.Concat(now, values[len(was):])
		case there: // without a value it tells net/http not to make one (Content-Type, Date)
			header[name] = values
		default:
			delete(header, name)
		}
	}
}

// independent are the fields that get lines from several parties.
var independent = map[string]bool{"Set-Cookie": true, "Vary": true}

func startsWith(list, start []string) bool {
	return len(list) >= len(start) && slices.Equal(list[:len(start)], start)
}
