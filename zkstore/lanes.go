package zkstore

import (
	"context"

	"github.com/go-zookeeper/zk"
)

// request is a list of operations on its way.
type request struct {
	root  *root
	epoch int32
	steps []step
}

// multi executes the operations of a request as one change, if the epoch still lasts. After
// an error that is [mistaken], wrong is the place of the step that was mistaken; -1 if the
// epoch has ended.
func (s *server) multi(ctx context.Context, r request) (results []zk.MultiResponse, number int64, wrong int, err error) {
	ops := []any{&zk.CheckVersionRequest{Path: r.root.epochPath(), Version: r.epoch}}
	tells := false
	for _, step := range r.steps {
		ops = append(ops, step.op)
		if _, ok := step.op.(*zk.SetDataRequest); ok {
			tells = true
		}
	}
	if !tells {
		ops = append(ops, &zk.SetDataRequest{Path: r.root.nowPath(), Data: []byte(gone), Version: -1})
	}
	results, err = call(ctx, s, func() ([]zk.MultiResponse, error) { return s.conn.Multi(ops...) })
	for i, one := range results {
		if one.Error != nil && err != nil {
			return nil, 0, i - 1, err
		}
		if one.Stat != nil {
			number = one.Stat.Mzxid
		}
	}
	if err != nil {
		return nil, 0, -1, err
	}
	s.saw(number)
	return results[1:], number, 0, nil
}
