package riverlock

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/riverqueue/river/rivertype"
)

// names are the parts of a job for a rule: the metadata that is text, and the fields of the
// arguments, with dots between the names of nested objects. Of one name the arguments count. A
// field that is null, or a list, has no value, and neither has a field with a dot in its name: it
// could be a nested field as well.
func names(job *rivertype.JobRow) map[string]string {
	all := metadata(job)
	var args map[string]any
	decoder := json.NewDecoder(bytes.NewReader(job.EncodedArgs))
	decoder.UseNumber() // a number is text, digit by digit
	if decoder.Decode(&args) == nil {
		flatten(all, "", args)
	}
	return all
}

func flatten(all map[string]string, prefix string, object map[string]any) {
	for name, v := range object {
		if strings.Contains(name, ".") {
			continue
		}
		name = prefix + name
		delete(all, name)
		switch v := v.(type) {
		case string:
			all[name] = v
		case json.Number:
			all[name] = v.String()
		case bool:
			all[name] = strconv.FormatBool(v)
		case map[string]any:
			flatten(all, name+".", v)
		}
	}
}
