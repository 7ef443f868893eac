package drivertest

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed testdata/*.txt
var files embed.FS

// step is a line of a scenario: an action of an actor, or a directive.
type step struct {
	at, text string // the file with the line, and the line

	actor, key  string
	verb        *verb
	asks, wants words // before and after the arrow
	until       bool  // the action is repeated until the answer is the expected one
	directive   word
	steps       []step // of a block
}

// word is a name, or a name with an operator and a value.
type word struct {
	name, op, value string
	n               int           // the value as a number
	d               time.Duration // the value as a time
}

type words []word

// get returns a word, or the zero word if the word is missing.
func (all words) get(name string) word {
	if i := slices.IndexFunc(all, func(w word) bool { return w.name == name }); i >= 0 {
		return all[i]
	}
	return word{}
}

func (all words) has(name string) bool { return all.get(name).name != "" }

const (
	actor = `[A-Za-z][A-Za-z0-9]*(?::[a-z0-9]*)?!?`
	name  = `\+?` + actor + `(?:~[a-zA-Z])?`
)

var (
	actors     = regexp.MustCompile(`^` + actor + `$`)
	directives = regexp.MustCompile(`^(?:(note) the time|(pause|elapsed) ?([<>]?=?) ([0-9]+m?s)|(within) ([0-9]+m?s):|(repeat) ([0-9]+) times:)$`)
	shape      = regexp.MustCompile(`^([a-z]+)(\+|[<>]=?|=)?(.*)$`)

	number  = regexp.MustCompile(`^=-?[0-9]+$`)
	timed   = regexp.MustCompile(`^(?:=|[<>]=?)[0-9]+m?s(?:\|unknown)?$`)
	counted = regexp.MustCompile(`^(?:=|[<>]=?)(?:` + actor + `|[0-9]+)(?:\+[0-9]+)?$`)
	named   = regexp.MustCompile(`^=` + name + `(?:[,|]` + name + `)*$`)
)

// values has the form of a word's operator and value. The other words have no value.
var values = map[string]*regexp.Regexp{
	"ttl": timed, "left": timed, "noted": timed, "revoked": regexp.MustCompile(`^(?:=[0-9]+m?s)?$`), "permit": number, "kind": number, "times": number,
	"token": counted, "number": counted, "order": counted, "offer": counted, "above": counted, "from": named,
	"holder": named, "owners": named, "in": timed, "others": regexp.MustCompile(`^(?:=[0-9]+)?$`),
	"wait": regexp.MustCompile(`^\+?(?:~[a-zA-Z])?$`),
}

// parser reads a file of scenarios.
type parser struct {
	parts  []part
	common []string  // the needs before the first scenario
	blocks []*[]step // the open blocks, the innermost last
}

func parse(file, text string) ([]part, error) {
	var p parser
	for i, line := range strings.Split(text, "\n") {
		at := fmt.Sprintf("%s:%d", file, i+1)
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimRight(line, " "); line == "" {
			continue
		}
		if err := p.line(at, line, strings.TrimSuffix(path.Base(file), ".txt")); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return p.parts, nil
}

func (p *parser) line(at, line, group string) error {
	text := strings.TrimLeft(line, " ")
	depth := (len(line) - len(text) + 1) / 2
	if title, ok := strings.CutPrefix(line, "scenario "); ok {
		p.parts = append(p.parts, part{name: group + ": " + title, needs: p.common[:len(p.common):len(p.common)]})
		p.blocks = []*[]step{&p.parts[len(p.parts)-1].steps}
		return nil
	}
	if need, ok := strings.CutPrefix(line, "needs "); ok {
		to := &p.common
		if len(p.parts) > 0 {
			to = &p.parts[len(p.parts)-1].needs
		}
		if *to = append(*to, need); needs[need] == nil {
			return fmt.Errorf("unknown need %q", need)
		}
		return nil
	}
	if depth >= len(p.blocks) {
		return errors.New("a step outside of a scenario or of a block")
	}
	s := step{at: at, text: text}
	if err := s.parse(strings.Fields(text)); err != nil {
		return err
	}
	block := p.blocks[depth]
	*block = append(*block, s)
	if p.blocks = p.blocks[:depth+1]; s.directive.name == "within" || s.directive.name == "repeat" {
		p.blocks = append(p.blocks, &(*block)[len(*block)-1].steps)
	}
	return nil
}

// parse reads the fields of a line.
func (s *step) parse(fields []string) error {
	if m := directives.FindStringSubmatch(s.text); m != nil {
		s.directive = valued(m[1]+m[2]+m[5]+m[7], m[3], m[4]+m[6]+m[8])
		return nil
	}
	if s.until = fields[0] == "until"; s.until {
		fields = fields[1:]
	}
	if len(fields) < 2 || !actors.MatchString(fields[0]) || verbs[fields[1]] == nil || len(fields) == 2 && !verbs[fields[1]].keyless {
		return fmt.Errorf("unknown step %q", s.text)
	}
	s.actor, s.verb, fields = fields[0], verbs[fields[1]], fields[2:]
	if !s.verb.keyless {
		s.key, fields = fields[0], fields[1:]
	}
	allowed, to := s.verb.asks, &s.asks
	for _, text := range fields {
		if text == "->" && to == &s.asks {
			allowed, to = s.verb.wants, &s.wants
			continue
		}
		m := shape.FindStringSubmatch(text)
		if m == nil || !strings.Contains(" "+allowed+" ", " "+m[1]+" ") {
			return fmt.Errorf("unknown word %q; expected is one of: %s", text, allowed)
		}
		form, compares := values[m[1]], strings.ContainsAny(m[2], "<>")
		if form == nil && m[2]+m[3] != "" || form != nil && !form.MatchString(m[2]+m[3]) || compares && to == &s.asks {
			return fmt.Errorf("a bad value in %q", text)
		}
		*to = append(*to, valued(m[1], m[2], m[3]))
	}
	if s.verb.answers && len(s.wants) == 0 {
		return errors.New("the line does not say which answer is expected")
	}
	return nil
}

// valued makes a word. A verb reads n or d only of a word with a number or a time.
func valued(name, op, value string) word {
	n, _ := strconv.Atoi(value)
	d, _ := time.ParseDuration(strings.TrimSuffix(value, "|unknown"))
	return word{name, op, value, n, d}
}
