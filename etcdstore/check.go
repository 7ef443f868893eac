package etcdstore

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/driver"
)

// keptRevisions is from how many revisions on that etcd still has, Check warns that nothing
// compacts: some 300 MB.
const keptRevisions = 1_000_000

// Check asks etcd about its members and its data. It returns a sorted list of unsafe conditions,
// each a sentence, or an empty list. Unsafe are fewer than three members that vote, an even
// number of them, members that the client does not know, an alarm such as a full disk, revisions
// that nothing compacts, a client that [Connect] has not made. With authentication, the user of
// the client needs no more rights for it than for locks: without a right, a sentence begins with
// [driver.NotKnown]. The error matches driver.ErrUnavailable if etcd does not answer. Clocks do not matter.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	var found []string
	own := s.Prefix() + "/" // a name of which the user may ask
	now, err := s.client.Get(ctx, own, clientv3.WithKeysOnly())
	switch {
	case is(err, rpctypes.ErrPermissionDenied):
		found = append(found, unasked("the revisions", err))
	case err != nil:
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	if members, err := s.client.MemberList(ctx); err != nil {
		found = append(found, unasked("the members", err))
	} else {
		found = append(found, s.membership(members.Members)...)
	}
	if alarms, err := s.client.AlarmList(ctx); err != nil {
		found = append(found, unasked("the alarms", err))
	} else {
		for _, a := range alarms.Alarms {
			found = append(found, fmt.Sprintf("member %x has the alarm %s: etcd refuses what writes", a.MemberID, a.Alarm))
		}
	}
	if now != nil && now.Header.Revision > keptRevisions {
		old := now.Header.Revision - keptRevisions
		_, err := s.client.Get(ctx, own, clientv3.WithRev(old), clientv3.WithKeysOnly())
		if err == nil {
			found = append(found, fmt.Sprintf("etcd still has what was %d revisions ago: a pair of lock and release stays as some "+
				"300 bytes until it is compacted; start the members with --auto-compaction-retention", keptRevisions))
		}
	}
	if s.client.Ctx().Value(connected{}) == nil {
		found = append(found, "the client is not from etcdstore.Connect: where a member hangs, requests wait for it in turn, "+
			"and each call of a user with a password authenticates alone")
	}
	slices.Sort(found)
	return found, nil
}

// unasked is the sentence about a question that etcd has refused. Only a missing right says nothing of
// the members.
func unasked(what string, err error) string {
	if is(err, rpctypes.ErrPermissionDenied) {
		return fmt.Sprintf(driver.NotKnown+"%s (%v)", what, err)
	}
	return fmt.Sprintf("%s could not be asked for: %v", what, err)
}

// membership names unsafe conditions of the members.
func (s *Store) membership(members []*etcdserverpb.Member) []string {
	var found []string
	voters := 0
	for _, m := range members {
		if !m.IsLearner {
			voters++
		}
	}
	switch {
	case voters < 3:
		found = append(found, fmt.Sprintf("%d members vote: with fewer than 3, no lock is granted while one is down", voters))
	case voters%2 == 0:
		found = append(found, fmt.Sprintf("%d members vote: one more than %d, and no more of them may fail", voters, voters-1))
	}
	if known := len(s.client.Endpoints()); known < voters {
		found = append(found, fmt.Sprintf("the client knows %d endpoints of %d members: name all of them", known, voters))
	}
	return found
}
