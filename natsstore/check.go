package natsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/driver"
)

// mostPing is the longest time between two pings of a client that notices soon that a member hangs.
const mostPing = 10 * time.Second

// Check asks NATS about the bucket and its members. It returns a sorted list of unsafe conditions, each a sentence, or
// an empty list. Unsafe are fewer than three members, an even number of them, a member that is away or lags, a version
// before 2.12, settings that [Create] does not make, a client with pings that are far apart. Without a
// right, a sentence begins with [driver.NotKnown]. The error matches driver.ErrUnavailable if NATS does not answer. NATS
// does not say when it writes to its disk (sync_interval); see docs/consensus.md. Clocks do not matter.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	var found []string
	nc := s.server.nc
	var major, minor int
	v := nc.ConnectedServerVersion()
	if n, _ := fmt.Sscanf(v, "%d.%d", &major, &minor); n == 2 && (major < 2 || major == 2 && minor < 12) {
		found = append(found, fmt.Sprintf("NATS %s is older than 2.12: it has no atomic batches, so no lock is granted", v))
	}
	if nc.Opts.PingInterval > mostPing {
		found = append(found, fmt.Sprintf("the client pings every %v: where a member hangs, no lock is renewed meanwhile; "+
			"connect with nats.PingInterval(2*time.Second)", nc.Opts.PingInterval))
	}
	before := nc.LastError()
	stream, err := s.server.js.Stream(ctx, s.server.stream)
	if now := nc.LastError(); err != nil && now != before && errors.Is(now, nats.ErrPermissionViolation) { //nolint:errorlint // a new one
		return append(found, fmt.Sprintf(driver.NotKnown+"the settings of the bucket (%v)", now)), nil
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return append(found, fmt.Sprintf("there is no bucket %s: natsstore.Create makes it", strings.TrimPrefix(s.server.stream, "KV_"))), nil
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	info := stream.CachedInfo()
	found = append(found, settings(info.Config)...)
	switch n := info.Config.Replicas; {
	case n < 3:
		found = append(found, fmt.Sprintf("the bucket is on %d members: with fewer than 3, no lock is granted while one is down", n))
	case n%2 == 0:
		found = append(found, fmt.Sprintf("the bucket is on %d members: one more than %d, and no more of them may fail", n, n-1))
	}
	if info.Cluster != nil {
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current {
				found = append(found, fmt.Sprintf("the member %s is away, or lags", r.Name))
			}
		}
	}
	slices.Sort(found)
	return found, nil
}

// settings names unsafe settings of a bucket.
func settings(c jetstream.StreamConfig) (found []string) {
	for _, one := range []struct {
		wrong bool
		text  string
	}{
		{c.Storage != jetstream.FileStorage, "the bucket is in memory: members that start again have lost it"},
		{c.Discard != jetstream.DiscardNew, "the bucket discards old entries when it is full (discard: old): locks are lost then"},
		{c.MaxAge != 0, fmt.Sprintf("the bucket deletes entries after %v (max_age): locks are lost then", c.MaxAge)},
		{c.MaxMsgsPerSubject != 1 || c.DiscardNewPerSubject, "the bucket must keep one message for each subject (max_msgs_per_subject: 1)"},
		{c.Retention != jetstream.LimitsPolicy, "the bucket deletes what consumers have read (retention): locks are lost then"},
		{c.PersistMode == jetstream.AsyncPersistMode, "the bucket answers before it writes (persist_mode: async): a crash loses locks"},
		{!c.AllowAtomicPublish, "the bucket takes no atomic batches (allow_atomic): no lock is granted"},
		{!c.AllowMsgTTL, "the bucket takes no messages with an end (allow_msg_ttl): no lock is released"},
		{!c.AllowDirect, "members of the bucket do not answer to reads (allow_direct): no lock is granted"},
		{c.NoAck, "the bucket does not answer (no_ack): no lock is granted"},
		{c.Sealed || c.Mirror != nil || len(c.Sources) > 0, "the bucket is sealed, or has messages of another stream"},
		{c.AllowMsgCounter, "the bucket counts (allow_msg_counter): no lock is granted"},
		{c.SubjectTransform != nil, "the bucket changes subjects (subject_transform): no lock is granted"},
		{c.MaxMsgSize > 0 && c.MaxMsgSize < 20<<10, "the bucket has no room for a value of 16 KB (max_msg_size)"},
	} {
		if one.wrong {
			found = append(found, one.text)
		}
	}
	return found
}
