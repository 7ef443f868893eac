package rediswire

import "time"

const (
	// fewPipelines is how many pipelines to one server may be under way in any case. They do
	// not wait for one another: while the server works on one, their callers work on the
	// replies of another, and a slow one delays no other request.
	fewPipelines = 4
	// maxPipelines is how many may be under way where the way is long ([pipelines.look]).
	maxPipelines = 8
	// pipelineWork is twice the time that client and server together need to send a pipeline and
	// its replies: on machines that have other work it takes as long. With less than that, 16
	// callers at 0.8 ms had their replies later by more pipelines. requestWork is the time for
	// each request of a pipeline.
	pipelineWork = 200 * time.Microsecond
	requestWork  = 5 * time.Microsecond
)

// full reports whether a request has to wait until a pipeline is back. Called with q.mu held.
func (q *pipelines) full() bool { return q.busy >= min(q.most, max(q.worth, fewPipelines)) }

// look notes how long a pipeline that is back was under way, and finds how many pipelines
// are worth their work. Where the way takes longer than the work on all requests, client and
// server are idle, and a request that waits for the reply of another loses time. Elsewhere
// a request that leaves alone comes back no earlier, and costs the work that requests share
// by waiting. After a failure few pipelines try. Called with q.mu held.
func (q *pipelines) look(p *pipeline) {
	if len(p.batch) == 0 {
		return
	}
	q.sent -= len(p.batch)
	p.batch = p.batch[:0]
	if !p.works {
		q.worth = 0
		return
	}
	if p.trip > 0 {
		q.trips.Note(p.trip)
	}
	spare := q.trips.Least() - time.Duration(q.sent+len(q.queue))*requestWork
	q.worth = int(spare / pipelineWork)
}
