package asynqlock

import (
	"context"
	"net/url"

	"github.com/hibiken/asynq"

	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Option changes [Idempotent]. A nil Option has no effect.
type Option func(*options)

type options struct {
	key  func(ctx context.Context, task *asynq.Task) string
	with []once.Option
}

func newOptions(opts []Option) *options {
	o := &options{key: typeAndID}
	for _, option := range opts {
		if option != nil {
			option(o)
		}
	}
	return o
}

// typeAndID is the key of a task unless Key says otherwise. It is empty, which no record
// is made for, outside of a server.
func typeAndID(ctx context.Context, task *asynq.Task) string {
	id, _ := asynq.GetTaskID(ctx)
	if id == "" {
		return ""
	}
	return url.PathEscape(task.Type()) + "/" + once.KeyOf(id, task.Headers()) // another type and ID never make the same text
}

// Key says which tasks are the same work: those with the same key. The key names the work
// and not only its object ("charge/order-7"), since two types of tasks with one key are
// refused. A task with an empty key, or with a key of more than 512 bytes, is archived.
// Default: the type of the task, escaped as a part of a path, a slash, and the ID, or the key that
// the task was made with ([once.KeyOf]).
func Key(f func(ctx context.Context, task *asynq.Task) string) Option {
	return func(o *options) {
		if f != nil {
			o.key = f
		}
	}
}

// With passes options to [once.Do]. Default: none.
//
//	asynqlock.Idempotent(engine, asynqlock.With(once.Cancelable()))
func With(opts ...once.Option) Option {
	return func(o *options) { o.with = append(o.with, opts...) }
}
