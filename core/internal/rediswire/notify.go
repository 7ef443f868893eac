package rediswire

import (
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Notify implements [driver.Notifier]: the locker has a channel of its own. What is said there
// is the number of an owner of the locker, a space and the name of a lock (lua/want.lua).
// Anything else is ignored, also what a later version may say.
func (s *Store) Notify(id string, hear func(key, owner string)) (stop func()) {
	return s.subscriber.watch(s.names.wanted(id), time.Now(), func(message string) {
		if message == "" {
			hear("", "")
		} else if key, owner, ok := s.newsOf(id, message); ok {
			hear(key, owner)
		}
	})
}

// newsOf reads what is said on the channel of a locker.
func (s *Store) newsOf(id, message string) (key, owner string, ok bool) {
	number, name, _ := strings.Cut(message, " ")
	if _, err := strconv.ParseUint(number, 10, 64); err != nil {
		return "", "", false
	}
	key, ok = s.KeyOf(name)
	return key, driver.Attentive(id + ":" + number), ok
}

// News returns a channel and a message which tell the locker of an attentive owner that
// something has happened to the lock of a key. ok is false for any other owner.
func (s *Store) News(key, owner string) (channel, message string, ok bool) {
	id, ok := driver.IsAttentive(owner)
	if !ok {
		return "", "", false
	}
	number := owner[len(id)+1 : len(owner)-1]
	return s.names.wanted(id), number + " " + s.names.lock(key), true
}
