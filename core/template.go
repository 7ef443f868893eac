package core

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/internal/requests"
)

// Key builds a lock key from its segments, as the template of a guard does.
// Key("account", id) is the key of the template account/{id} for a request with that
// id, so that a batch job and a handler exclude each other.
//
// Key joins the segments with slashes. In each segment it percent-escapes every
// byte outside the unreserved characters of RFC 3986, 2.3 (letters, digits, "-",
// ".", "_", "~"). Different segments therefore never make the same key, also if
// they contain slashes, braces, control characters, bytes that are not UTF-8.
// Segments are compared as bytes, without normalization and without folding of
// case.
//
// Where the template has a form, account/{id:int}, the key contains the canonical
// text of the value: what [strconv.FormatInt] makes of a number, and what
// [Form.Canonical] makes of a text. Key itself changes nothing.
//
// Key returns an error that matches [ErrKey] if there is no segment, if a segment is
// empty (all callers without a value would share one lock), or if the escaped key is
// longer than 512 bytes.
func Key(segments ...string) (string, error) {
	if len(segments) == 0 {
		return "", fmt.Errorf("%w: no segments", ErrKey)
	}
	var space [maxKey]byte
	buf := space[:0]
	for i, s := range segments {
		if s == "" {
			return "", fmt.Errorf("%w: segment %d of %d is empty", ErrKey, i+1, len(segments))
		}
		if i > 0 {
			buf = append(buf, '/')
		}
		if buf = appendEscaped(buf, s); len(buf) > maxKey {
			return "", tooLong()
		}
	}
	return string(buf), nil
}

// template is a parsed key template: a list of placeholders, each with the
// literal text before it, and the text after the last.
type template struct {
	text string
	vars []placeholder
	tail string
}

// placeholder is one {...} of a template.
type placeholder struct {
	adapter.Placeholder
	form    Form        // Placeholder.Form
	text    string      // as written, for messages
	literal string      // what stands before it
	find    RequestFunc // of {ctx.name}
}

// namedFunc is a function that ContextFunc has registered.
type namedFunc struct {
	name string
	f    RequestFunc
}

// The syntax of a template, for error messages.
const (
	acceptedNames   = "accepted are {name}, {header.Name}, {query.name} and {ctx.name}, each also with a form such as {name:int}"
	acceptedLiteral = "accepted between placeholders are letters, digits, - . _ ~ and the separator /"
)

// parseTemplate reads a key template. Its errors say the fault, its position (counted
// in bytes from 1) and the accepted syntax.
//
// The grammar makes collisions impossible rather than unlikely. Literal text is
// unreserved characters only, which escaping would not change: the key looks like the
// template, and Key builds the same. A segment has at most one placeholder, since in
// {a}-{b} the values 1-2, 3 and 1, 2-3 would meet in one key; the only separator is the
// slash, and no escaped value holds one.
func parseTemplate(text string, funcs []namedFunc) (*template, error) {
	fail := func(at int, format string, args ...any) (*template, error) {
		return nil, fmt.Errorf("%w: template %q: position %d: %s", ErrConfig, text, at+1, fmt.Sprintf(format, args...))
	}
	if text == "" {
		return nil, fmt.Errorf("%w: empty template: write the key of what is locked, such as account/{id}", ErrConfig)
	}
	t := &template{text: text}
	var (
		literal int  // where the literal text that we are in began
		segment int  // where the segment began
		taken   bool // whether the segment has a placeholder already
		length  int  // of all literal text
	)
	for i := 0; i < len(text); {
		switch b := text[i]; {
		case b == '{':
			n := strings.IndexAny(text[i+1:], "{}")
			if n < 0 || text[i+1+n] == '{' {
				return fail(i, "the { is never closed; %s", acceptedNames)
			}
			if taken {
				return fail(i, "a second placeholder in one segment: where one value ends and the next begins could not be told; put a / between them")
			}
			inside := text[i+1 : i+1+n]
			p, err := parsePlaceholder(inside, funcs)
			if err != nil {
				return fail(i, "{%s}: %v", inside, err)
			}
			p.literal = text[literal:i]
			t.vars = append(t.vars, p)
			i += n + 2
			literal, taken = i, true
			continue
		case b == '}':
			return fail(i, "} without a { before it; %s", acceptedNames)
		case b == '/':
			// An empty segment is a typing mistake, and Key refuses it too.
			if i == segment || i+1 == len(text) {
				return fail(i, "an empty segment: a / stands between two parts, neither first nor last nor doubled")
			}
			segment, taken = i+1, false
		case b == ':':
			return fail(i, "':' in literal text; a placeholder is written {name} for every framework; %s", acceptedLiteral)
		case !unreserved(b):
			r, _ := utf8.DecodeRuneInString(text[i:])
			return fail(i, "%q in literal text; %s", r, acceptedLiteral)
		}
		length++
		i++
	}
	if length > maxKey {
		return nil, fmt.Errorf("%w: template of %d bytes of literal text; a key has at most %d", ErrConfig, length, maxKey)
	}
	t.tail = text[literal:]
	return t, nil
}

// parsePlaceholder reads the text between the braces.
func parsePlaceholder(inside string, funcs []namedFunc) (placeholder, error) {
	p := placeholder{text: "{" + inside + "}"}
	p.Source, p.Name = adapter.SourceParam, inside
	if before, after, ok := strings.Cut(inside, "."); ok {
		switch s := adapter.Source(before); s {
		case adapter.SourceParam, adapter.SourceHeader, adapter.SourceQuery, adapter.SourceContext:
			p.Source, p.Name = s, after
		}
	}
	if i := strings.LastIndexByte(p.Name, ':'); i >= 0 { // no name has a colon
		p.Name, p.Form = p.Name[:i], p.Name[i+1:]
		if p.form = Form(p.Form); !p.form.known() {
			return p, fmt.Errorf("no form %q; %s", p.Form, acceptedForms)
		}
	}
	switch {
	case strings.TrimSpace(p.Name) == "":
		return p, fmt.Errorf("the name is missing; %s", acceptedNames)
	case strings.HasPrefix(p.Name, "*") || strings.HasSuffix(p.Name, "..."):
		return p, fmt.Errorf("a wildcard holds something else in every framework; use KeyFunc")
	}
	switch p.Source {
	case adapter.SourceHeader:
		if i := strings.IndexFunc(p.Name, func(r rune) bool { return !tokenRune(r) }); i >= 0 {
			return p, fmt.Errorf("no header has such a name; accepted are letters, digits and !#$%%&'*+-.^_`|~")
		}
		p.Name = textproto.CanonicalMIMEHeaderKey(p.Name)
	case adapter.SourceQuery:
		if strings.ContainsFunc(p.Name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
			return p, fmt.Errorf("blanks and control characters are not accepted in a name")
		}
	default:
		for part := range strings.SplitSeq(p.Name, ".") {
			if part == "" {
				return p, fmt.Errorf("an empty part between dots; %s", acceptedNames)
			}
			if strings.ContainsFunc(part, func(r rune) bool { return !nameRune(r) }) {
				return p, fmt.Errorf("accepted in a name are letters, digits, _, - and dots between them")
			}
		}
	}
	if p.Source == adapter.SourceContext {
		var names []string
		for _, f := range slices.Backward(funcs) { // the last given counts, as with every option
			if f.name == p.Name {
				p.find = f.f
				return p, nil
			}
			names = append(names, f.name)
		}
		return p, fmt.Errorf("no ContextFunc of this name; give the rule core.ContextFunc(%q, f); registered are %q", p.Name, names)
	}
	return p, nil
}

func nameRune(r rune) bool {
	return r == '_' || r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// tokenRune reports whether r may be in a header's name (RFC 9110, 5.6.2).
func tokenRune(r rune) bool {
	return r < utf8.RuneSelf && (unreserved(byte(r)) || strings.ContainsRune("!#$%&'*+^`|", r))
}

// key builds the key that the template makes of a request: ErrKey, adapter.ErrNoParam,
// or what a context function returned. Messages name the placeholder, never the
// value: they end up in logs.
func (t *template) key(ctx context.Context, req Request) (string, error) {
	// The longest key fits on the stack: only the key itself is allocated.
	var space [maxKey]byte
	buf := space[:0]
	for i := range t.vars {
		p := &t.vars[i]
		v, err := p.value(ctx, req)
		if err != nil {
			return "", err
		}
		buf = append(buf, p.literal...)
		if len(buf)+len(v) > maxKey { // before escaping, which can triple it
			return "", tooLong()
		}
		if buf = appendEscaped(buf, v); len(buf) > maxKey {
			return "", tooLong()
		}
	}
	if buf = append(buf, t.tail...); len(buf) > maxKey {
		return "", tooLong()
	}
	return string(buf), nil
}

// value is the text that goes into the key: the value as it came or, of a placeholder with a
// form, in its canonical form. A value that is missing, empty or given twice is never
// replaced by anything: all requests without a value would share one lock, and about which
// of two headers counts, proxies and frameworks do not agree.
func (p *placeholder) value(ctx context.Context, req Request) (v string, err error) {
	switch p.Source {
	case adapter.SourceHeader:
		v, err = p.single(req.Header(p.Name))
	case adapter.SourceQuery:
		v, err = p.single(req.Query(p.Name))
	case adapter.SourceContext:
		if v, err = p.find(ctx, requests.Copy(req)); err == nil && v == "" {
			err = errNothingFound
		}
		if err != nil {
			err = fmt.Errorf("interlock: %s: %w", p.text, err)
		}
	default:
		if v, err = req.Param(p.Name); err != nil {
			err = p.noParam(ctx, req, err)
		}
	}
	switch {
	case err != nil:
		return "", err
	case v == "":
		return "", fmt.Errorf("%w: %s is empty", ErrKey, p.text)
	case p.form == "":
		return v, nil
	}
	if v, err = p.form.Canonical(v); err != nil {
		return "", fmt.Errorf("%w, of %s", err, p.text)
	}
	return v, nil
}

// noParam says why a parameter has no value.
func (p *placeholder) noParam(ctx context.Context, req Request, err error) error {
	switch {
	case errors.Is(err, adapter.ErrNoParam):
		route, _ := req.Route()
		hint := ""
		if strings.Contains(p.Name, ".") {
			hint = "; the sources are header, query and ctx, and a KeyFunc takes a value from the body or a cookie"
		}
		return fmt.Errorf("%w: %s, route %q%s", err, p.text, route, hint)
	case ctx.Err() != nil:
		// A value that has to be received first does not come any more when the
		// client has gone: that is no mistake of the client's.
		return fmt.Errorf("interlock: %s: %w", p.text, err)
	}
	return fmt.Errorf("%w: %s is malformed: %w", ErrKey, p.text, err)
}

// single returns the only value of a list.
func (p *placeholder) single(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", fmt.Errorf("%w: %s is missing", ErrKey, p.text)
	case 1:
		return values[0], nil
	}
	return "", fmt.Errorf("%w: %s is given %d times", ErrKey, p.text, len(values))
}

func tooLong() error {
	return fmt.Errorf("%w: longer than %d bytes when escaped", ErrKey, maxKey)
}

// unreserved reports whether a byte stands for itself in a key (RFC 3986, 2.3).
func unreserved(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' ||
		b == '-' || b == '.' || b == '_' || b == '~'
}

// appendEscaped appends s with everything but unreserved bytes escaped. It is
// injective: its output decodes to s and to nothing else.
func appendEscaped(buf []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		if b := s[i]; unreserved(b) {
			buf = append(buf, b)
		} else {
			buf = append(buf, '%', hex[b>>4], hex[b&15])
		}
	}
	return buf
}
