package quorum

import (
	"crypto/rand"
	"strconv"
	"strings"
	"time"
)

// mark is a key that a node keeps and that a process reads, to know whether the node has
// kept its votes. It is lost with them: by a restart without data, FLUSHALL, or a
// failover to a server that never had it. It names the run of the server for which it
// was made, because a restart may also bring back the data of a former moment.
//
// A process that finds no mark, or the mark of another run, leaves a mark of a new name
// that says that the node waits. After [MaxTTL], by its own clock, it lets that same mark
// say that the node votes: all that the node had forgotten before the mark was made has
// ended by then, and since then it has lost nothing, or the mark would not be there. For
// any other process that is enough, however long it was away.
type mark struct {
	run, name string
	maxTTL    time.Duration // of the process that has made it
	votes     bool
}

// The last words of a mark.
const (
	markWaits = "waits"
	markVotes = "votes"
)

// newMark makes a mark of a node that waits.
func newMark(run string, maxTTL time.Duration) mark {
	return mark{run: run, name: rand.Text(), maxTTL: maxTTL}
}

// readMark reads a mark; zero if the text is none.
func readMark(text string) mark {
	words := strings.Split(text, " ")
	if len(words) != 4 || words[1] == "" {
		return mark{}
	}
	ms, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil || words[3] != markWaits && words[3] != markVotes {
		return mark{}
	}
	return mark{words[0], words[1], time.Duration(ms) * time.Millisecond, words[3] == markVotes}
}

// text is the stored form of a mark.
func (m mark) text() string {
	word := markWaits
	if m.votes {
		word = markVotes
	}
	return strings.Join([]string{m.run, m.name, strconv.FormatInt(m.maxTTL.Milliseconds(), 10), word}, " ")
}
