package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/internal/display"
)

var idemCommand = &command{
	brief:   true,
	name:    "idem",
	args:    "ls | show|resolve|forget PRINCIPAL KEY | show|resolve RECORD",
	lists:   "ls",
	records: true,
	short:   "list, show and settle records of idempotency keys",
	long: `PRINCIPAL is what the endpoint's Scope returns, '' under Global; KEY is the key without
quotes. With -function both belong to a function (once.Do). RECORD is the hash by which
logs, traces and ls name a record.

ls       lists the records, with -state those in a state, with -older those whose last lease
         ended so long ago; -limit bounds it, and -after goes on. DOWNSTREAM KEY is what
         idempotency.DownstreamKey gave the handler, with the same -step: ask the service
         that had the effect for it.

show     the state of the record: in-flight, handed-over (to a job with its ticket), lapsed, open (steps are stored, and
         the next attempt goes on), unknown, completed, unavailable, expired, damaged or none (exit code 3). Of an answer it shows status and size.
resolve  settles a record in the state unknown, and no other (exit code 3). Find out
         first whether the request had its effect. -not-carried-out: it had none, and
         the next request is carried out. -status: it had, and from now on requests get
         this answer, which is stored as it is given, without idempotency.Seal. -step: the
         step under way had its effect, with the result in -body, and the next attempt goes on.
forget   deletes the record, so that the next request is carried out, and what was
         before is lost. -state must name the state that the record has.

` + quoting,
	examples: [][2]string{
		{"idem ls -state unknown", "what an operator has to settle"},
		{"idem ls -state unknown -older 1h -limit 100", "the hundred first of these that have ended an hour ago"},
		{"idem show tenant-7 8e03978e-40d5-43e8-bc93-6894a57f9324", "the state of a payment"},
		{"idem resolve tenant-7 8e03978e -not-carried-out", "the bank has not heard of it"},
		{"idem resolve tenant-7 8e03978e -step book -body room.json", "the hotel has booked a room; the next attempt goes on"},
		{"idem resolve tenant-7 8e03978e -status 201 -header 'Content-Type: application/json' -body answer.json", "it was made; answer so"},
		{"idem forget tenant-7 8e03978e -state completed", "have it carried out again"},
	},
	words: []string{"ls", "show", "resolve", "forget"},
	setup: func(fs *flag.FlagSet) action {
		o := &settling{header: map[string][]string{}, stdin: os.Stdin}
		fs.BoolVar(&o.function, "function", false, "the key belongs to a function")
		fs.StringVar(&o.service, "service", "", "the `name` of the service, if its engine has one (idempotency.Service)")
		fs.BoolVar(&o.not, "not-carried-out", false, "resolve: the request had no effect")
		fs.IntVar(&o.status, "status", -1, "resolve: the request had its effect; `number` of the answer: an HTTP status, or the code of -protocol grpc")
		fs.StringVar(&o.protocol, "protocol", endpoint.HTTP, "resolve: `protocol` of the answer: http, grpc or func")
		fs.Func("header", "resolve: `'Name: value'` of the answer; may be given again", o.addHeader)
		fs.StringVar(&o.body, "body", "", "resolve: `file` with the body of the answer; - is standard input")
		fs.BoolVar(&o.strict, "strict", false, "resolve, ls: the endpoint is Strict, so that a lapsed record is unknown too")
		durationVar(fs, &o.retention, "retention", 24*time.Hour, "resolve: for how `long` the answer is kept, as the endpoint's Retention")
		fs.StringVar(&o.state, "state", "", "forget: the `state` that the record has; ls: list only records in it")
		durationVar(fs, &o.older, "older", 0, "ls: only records whose last lease ended this `time` ago, or longer")
		fs.IntVar(&o.limit, "limit", 0, "ls: at most this `number` of records; 0 is all")
		fs.StringVar(&o.after, "after", "", "ls: go on after the `cursor` with which an earlier list ended")
		fs.Func("step", "ls, show: a `step` that the handler gives to DownstreamKey; may be given again. resolve: the step under way",
			func(s string) error { o.steps = append(o.steps, s); return nil })
		return o.run
	},
}

// settling is a call of idem.
type settling struct {
	function, not, strict bool
	status                int
	protocol, body, state string
	service               string
	header                map[string][]string
	steps                 []string
	retention, older      time.Duration
	limit                 int
	after                 string
	stdin                 io.Reader
}

func (o *settling) addHeader(s string) error {
	name, value, ok := strings.Cut(s, ":")
	if !ok || strings.TrimSpace(name) == "" {
		return errors.New("it is 'Name: value'")
	}
	name = strings.TrimSpace(name)
	o.header[name] = append(o.header[name], strings.TrimSpace(value))
	return nil
}

func (o *settling) run(ctx context.Context, c *call) error {
	if err := c.want(1, 3); err != nil {
		return err
	}
	if c.args[0] == "ls" {
		return o.list(ctx, c)
	}
	if len(c.args) == 2 {
		return o.byRecord(ctx, c, c.args[1])
	}
	if err := c.want(3, 3); err != nil {
		return err
	}
	principal, err := display.Parse(c.args[1])
	if err != nil {
		return usageError("idem: PRINCIPAL: %w", err)
	}
	key, err := display.Parse(c.args[2])
	if err != nil {
		return usageError("idem: KEY: %w", err)
	}
	if o.function {
		principal = once.ScopeOf(principal)
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	switch c.args[0] {
	case "show":
		r, err := f.Record(ctx, idempotency.ServiceScope(o.service, principal), key)
		if err != nil {
			return err
		}
		return o.show(c, &r)
	case "resolve":
		found, err := o.resolution(c.patience)
		if err != nil {
			return err
		}
		return o.change(ctx, c, key, "resolved", func(e *idempotency.Engine) error { return e.Resolve(ctx, principal, key, found) })
	case "forget":
		r, err := f.Record(ctx, idempotency.ServiceScope(o.service, principal), key)
		if err != nil {
			return err
		}
		if r.State != o.state {
			return usageError("idem forget: the state of the record is %s; give it with -state %s to forget it", r.State, r.State)
		}
		return o.change(ctx, c, key, "forgotten", func(e *idempotency.Engine) error { return e.Forget(ctx, principal, key) })
	}
	return usageError("idem: %q; show, resolve and forget are known", c.args[0])
}

// recordHash is how logs and spans name a record.
var recordHash = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// byRecord carries out an action that needs only the hash of a record.
func (o *settling) byRecord(ctx context.Context, c *call, id string) error {
	if !recordHash.MatchString(id) {
		return usageError("idem %s: PRINCIPAL and KEY are needed, or RECORD, a hash of 43 characters", c.args[0])
	}
	switch c.args[0] {
	case "show":
		f, err := c.fleet()
		if err != nil {
			return err
		}
		r, err := f.RecordByID(ctx, id)
		if err != nil {
			return err
		}
		return o.show(c, &r)
	case "resolve":
		found, err := o.resolution(c.patience)
		if err != nil {
			return err
		}
		return o.change(ctx, c, id, "resolved", func(e *idempotency.Engine) error { return e.ResolveRecord(ctx, id, found) })
	}
	return usageError("idem %s: PRINCIPAL and KEY are needed", c.args[0])
}

// list lists records.
func (o *settling) list(ctx context.Context, c *call) error {
	if err := c.want(1, 1); err != nil {
		return err
	}
	if o.limit < 0 || o.older < 0 {
		return usageError("idem ls: -limit and -older must not be negative")
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	q := fleet.RecordQuery{Older: o.older}
	if q.After, err = display.Parse(o.after); err != nil {
		return usageError("idem ls: -after: %w", err)
	}
	if o.state != "" {
		q.States = []string{o.state}
	}
	if o.strict && o.state == fleet.RecordUnknown {
		q.States = append(q.States, fleet.RecordLapsed, fleet.RecordOpen)
	}
	return o.stream(ctx, c, f, q)
}

// stream prints the records as they come.
func (o *settling) stream(ctx context.Context, c *call, f *fleet.Fleet, q fleet.RecordQuery) error {
	out, last := c.list("RECORD", "STATE", "EFFECT MARKED", "ENDED", "KEPT FOR", "LAST STEP", "STEP UNDER WAY", "DOWNSTREAM KEY"), ""
	for r, err := range f.Records(ctx, q) {
		if errors.Is(err, driver.ErrConfig) {
			return &exitError{exitUsage, err}
		}
		if err != nil {
			return out.end(err)
		}
		if o.limit > 0 && out.rows == o.limit {
			_, _ = fmt.Fprintf(c.stderr, "interlock: there are more than %d: go on with -after=%s\n", o.limit, shellValue(display.Text(last)))
			break
		}
		last = r.Cursor
		if err := out.add(show.RecordOf(r, o.steps),
			display.Text(r.ID), r.State, fmt.Sprint(r.Marked), ended(&r), left(r.Kept), orDash(r.Step), orDash(r.StepUnderWay),
			cmp.Or(show.StepKey(r), r.DownstreamKey(o.steps...))); err != nil {
			return err
		}
	}
	return out.end(nil)
}

// orDash shows a name, which may be missing.
func orDash(name string) string { return cmp.Or(display.Text(name), "-") }

// ended shows how long ago the last lease of a record ended.
func ended(r *fleet.Record) string {
	if r.Ended == 0 {
		return "-"
	}
	return span(r.Ended) + " ago"
}

// resolution is the outcome that the flags give.
func (o *settling) resolution(wait patience) (admin.Resolution, error) {
	switch {
	case len(o.steps) == 1 && !o.not && o.status < 0:
		result, err := o.readBody(wait)
		return admin.StepDone(o.steps[0], result), err
	case o.not == (o.status >= 0) || len(o.steps) > 0:
		return admin.Resolution{}, usageError("idem resolve: give either -not-carried-out, -status, or one -step with its result as -body")
	case o.not:
		return admin.NotCarriedOut(), nil
	}
	header := map[string][]string{}
	for name, values := range o.header {
		if o.protocol == endpoint.HTTP {
			name = http.CanonicalHeaderKey(name)
		}
		header[name] = append(header[name], values...)
	}
	body, err := o.readBody(wait)
	return admin.CarriedOut(o.protocol, endpoint.Response{Status: o.status, Header: header, Body: body}), err
}

// readBody reads the file of -body.
func (o *settling) readBody(wait patience) (body []byte, err error) {
	wait.lift() // the body may come from a program that takes long
	defer wait.begin()
	switch o.body {
	case "":
	case "-":
		body, err = io.ReadAll(o.stdin)
	default:
		body, err = os.ReadFile(o.body)
	}
	if err != nil {
		return nil, usageError("idem resolve: -body: %w", err)
	}
	return body, nil
}

// change changes the record through an engine.
func (o *settling) change(ctx context.Context, c *call, key, result string, change func(*idempotency.Engine) error) error {
	opened, err := c.store(slog.New(slog.NewTextHandler(c.stderr, nil)))
	if err != nil {
		return err
	}
	defer opened.close()
	store, ok := opened.Store.(record.Store)
	if !ok {
		return fmt.Errorf("%w: idempotency records are on Redis and PostgreSQL", fleet.ErrNotServed)
	}
	opts := []idempotency.Option{idempotency.Global(), idempotency.Retention(o.retention)}
	if o.service != "" {
		opts = append(opts, idempotency.Service(o.service))
	}
	if o.strict {
		opts = append(opts, idempotency.Strict())
	}
	e, err := idempotency.New(store, opts...)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer func() { _ = e.Close(ctx) }()
	switch err := change(e); {
	case errors.Is(err, idempotency.ErrNotUnknown):
		return &exitError{exitNo, err}
	case errors.Is(err, driver.ErrConfig):
		return &exitError{exitUsage, err}
	case err != nil && ctx.Err() != nil:
		return &unknownError{"the record was " + result, err}
	case err != nil:
		return err
	}
	if c.json {
		return show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: result})
	}
	_, err = fmt.Fprintln(c.stdout, result)
	return err
}

// show prints the record.
func (o *settling) show(c *call, r *fleet.Record) (err error) {
	if c.json {
		err = show.JSON(c.stdout, show.RecordOf(*r, o.steps))
	} else {
		t := newTable(c.stdout)
		t.row("record", display.Text(r.ID))
		t.row("state", r.State)
		if r.Generation > 0 {
			t.row("generation", fmt.Sprint(r.Generation))
			t.row("effect marked", fmt.Sprint(r.Marked))
			t.row("kept for", left(r.Kept))
			t.row("downstream key", r.DownstreamKey(o.steps...))
		}
		if len(r.Steps) > 0 {
			t.row("steps", display.Text(strings.Join(r.Steps, ", ")))
		}
		if r.StepUnderWay != "" {
			t.row("step under way", display.Text(r.StepUnderWay))
			t.row("its downstream key", show.StepKey(*r))
		}
		switch r.State {
		case fleet.RecordInFlight:
			t.row("lease left", span(r.Lease))
		case fleet.RecordHandedOver:
			t.row("ticket good for", span(r.Lease))
		case fleet.RecordLapsed, fleet.RecordOpen, fleet.RecordUnknown:
			t.row("ended", ended(r))
		}
		switch {
		case r.Sealed:
			t.row("answer", fmt.Sprintf("%d bytes, sealed", r.Size))
		case r.Protocol != "":
			t.row("answer", fmt.Sprintf("%s %d, %d bytes", display.Text(r.Protocol), r.Status, r.Size))
		}
		err = t.flush()
	}
	if err == nil && r.State == fleet.RecordNone {
		err = &exitError{code: exitNo}
	}
	return err
}
