package explore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// Request is a request that a client sends until it is answered. The zero value is POST / with the body {}.
type Request struct {
	// Method, Path and Body are the request's. Default: POST, / and {}.
	Method, Path, Body string
	// Header has more fields. Default: Content-Type is application/json.
	Header http.Header
	// Key is the Idempotency-Key. Default: the request gets a key that no other has.
	Key string
}

// tryLimit is the time for which a client waits for the answer to a try.
const tryLimit = 20 * time.Second

// exchange is a request, and the answers to it.
type exchange struct {
	Request
	name      string          // request 1
	successes map[string]bool // the answers of success to clients that have not left, also the lost
	last      Answer
	settled   bool // the last answer is final
}

// Answer is the final answer to a request.
type Answer struct {
	// Status is 0 if there was no answer.
	Status int
	Header http.Header
	Body   string
	// Unknown says that the outcome of the request is unknown ([reason.OutcomeUnknown]), or that the stored answer is a
	// failure after which the effect may have happened.
	Unknown bool
}

func (a Answer) String() string {
	if a.Status == 0 {
		return "no answer"
	}
	body := a.Body
	if len(body) > 100 {
		body = body[:100] + "..."
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, body))
}

func (a Answer) success() bool { return a.Status >= 200 && a.Status < 300 }

// Answers returns the last answer to each of [Service.Requests], in their order.
func (w *World) Answers() []Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Answer, 0, len(w.answers))
	for _, x := range w.answers {
		all = append(all, x.last)
	}
	return all
}

// clients sends the requests.
func (w *World) clients() {
	if w.service.Handler == nil {
		return
	}
	requests := w.service.Requests
	if len(requests) == 0 {
		requests = []Request{{}}
	}
	for i, r := range requests {
		r.Method, r.Path, r.Body = cmp.Or(r.Method, http.MethodPost), cmp.Or(r.Path, "/"), cmp.Or(r.Body, "{}")
		r.Key = cmp.Or(r.Key, fmt.Sprintf("key-%d", i+1))
		w.answers = append(w.answers, &exchange{Request: r, name: fmt.Sprintf("request %d", i+1), successes: map[string]bool{}})
	}
	if w.setting == together {
		for i, x := range w.answers {
			for client := range 2 {
				w.spawn(func() {
					time.Sleep(time.Duration(2*i+client) * time.Microsecond) // the order of the clients is the same in each run
					w.send(x, i+client)
				})
			}
		}
		return
	}
	w.spawn(func() {
		for i := range w.answers {
			if w.setting == backward {
				i = len(w.answers) - 1 - i
			}
			w.send(w.answers[i], i)
		}
	})
}

// send sends a request until it is answered, first to the process with number first.
func (w *World) send(x *exchange, first int) {
	wait, until := 100*time.Millisecond, time.Now().Add(horizon)
	for try := first; time.Now().Before(until); try++ {
		got, err := w.try(x, w.pick(try))
		told := time.Duration(0)
		if err == nil {
			w.mu.Lock()
			settled := got.settles() && !w.interim(got)
			if settled || !x.settled {
				x.last, x.settled = got, settled
			}
			w.mu.Unlock()
			if settled {
				return
			}
			seconds, _ := strconv.Atoi(got.Header.Get("Retry-After"))
			told = time.Duration(seconds) * time.Second
		}
		time.Sleep(max(wait, told))
		wait = min(2*wait, 5*time.Second)
	}
}

// interim reports whether an answer only says that a job has the request: the client comes again for the answer of the job.
func (w *World) interim(a Answer) bool {
	return a.Header.Get(idempotency.InterimHeader) == "true" || w.service.Consumer != nil && a.Status == http.StatusAccepted &&
		a.Header.Get(idempotency.ReplayedHeader) != "true"
}

// settles reports whether a client takes an answer for the final one, as httplock.Transport does.
func (a Answer) settles() bool {
	switch {
	case a.Unknown:
		return true
	case a.Status == http.StatusConflict:
		return a.Header.Get("Retry-After") == ""
	}
	return a.Status < 500 && a.Status != http.StatusLocked && a.Status != http.StatusTooManyRequests && a.Status != http.StatusTooEarly
}

// try sends a request to a process, once.
func (w *World) try(x *exchange, p *Process) (Answer, error) {
	ctx, leave := context.WithCancel(p.serving(x.name))
	defer leave()
	r := httptest.NewRequestWithContext(ctx, x.Method, "http://service.example"+x.Path, strings.NewReader(x.Body))
	r.Header.Set("Content-Type", "application/json")
	maps.Copy(r.Header, x.Header.Clone())
	r.Header.Set(idempotency.KeyHeader, strconv.Quote(x.Key))
	rec := httptest.NewRecorder()
	served := make(chan error, 1)
	go w.serve(p, x, rec, r, served)
	limit := time.NewTimer(tryLimit)
	defer limit.Stop()
	select {
	case err := <-served:
		if err != nil {
			return Answer{}, err
		}
		return answerOf(rec), nil
	case <-p.died:
	case <-limit.C:
	}
	return Answer{}, ErrLost
}

func answerOf(rec *httptest.ResponseRecorder) Answer {
	a := Answer{Status: rec.Code, Header: rec.Header(), Body: rec.Body.String()}
	a.Unknown = strings.HasPrefix(a.Header.Get(idempotency.ResultHeader), string(reason.OutcomeUnknown)) ||
		a.Header.Get(idempotency.ReplayedHeader) == "true" && a.Status >= 500
	return a
}

// serve is the goroutine of a server for a request.
func (w *World) serve(p *Process, x *exchange, rec *httptest.ResponseRecorder, r *http.Request, served chan<- error) {
	defer func() {
		if v := recover(); v != nil {
			w.note(p.name, x.name, "", fmt.Sprint("panic: ", v))
			served <- errors.New("explore: the handler panicked")
		}
	}()
	p.handler.ServeHTTP(rec, r)
	got := answerOf(rec)
	v := p.visit(x.name, "answer to "+x.name, answer)
	if got.success() && r.Context().Err() == nil && !w.interim(got) {
		w.mu.Lock()
		x.successes[fmt.Sprintf("%d %s", got.Status, got.Body)] = true
		w.mu.Unlock()
	}
	w.note(p.name, x.name, "", got.String())
	served <- v.enter()
}
