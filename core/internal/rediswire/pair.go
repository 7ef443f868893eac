package rediswire

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Behind appends a command of two strings to the request, in the same pipeline. The script
// gets one argument more, after the arguments of [Request.Args]: "1" if the command is not
// there. A reply "completed TOKEN" promises that the first string is TOKEN.
func (r *Request) Behind(command []any) *Request {
	r.behind = command
	return r.Args(nil)
}

// pair prepares a try of a request with an appended command: that command, and the
// script's last argument, which says whether there is one. The way of a redirection has
// room for the script alone.
func (r *Request) pair() {
	r.args[len(r.args)-1] = Flag(r.alone)
	r.second = nil
	if !r.alone {
		r.second = redis.NewStringSliceCmd(context.Background(), r.behind...)
	}
}

// fits reports whether the second reply keeps the promise of the script's reply. It is
// not if the connection broke between the two, or if the record was replaced there: a
// pipeline is no transaction. A token belongs to one request alone, so a response that
// came with the right one is the right one.
func (r *Request) fits() bool {
	token, completed := r.Completed()
	if !completed {
		return true
	}
	read := r.second.Val()
	return r.second.Err() == nil && len(read) == 2 && read[0] == token
}

// Completed returns the token of a claim. The response that follows the script's reply
// belongs to it.
func (r *Request) Completed() (token string, completed bool) {
	if r.second == nil {
		return "", false
	}
	reply, _ := r.Val.(string)
	return strings.CutPrefix(reply, "completed ")
}

// Second returns the second string of the appended command.
func (r *Request) Second() string { return r.second.Val()[1] }
