package zkstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// Store keeps locks on ZooKeeper. It is a store for core.New. Make it with [New].
type Store struct {
	*casstore.Store
	server *server
	done   context.Context // ends with Close
	end    context.CancelFunc
	work   sync.WaitGroup
}

// New makes a store on a connection, which [Connect] makes, and which the store does not
// close. The options are in package casstore. New sends nothing. It returns
// driver.ErrConfig if conn is nil or an option cannot work. Close the store after the
// locker, and the connection after the store.
//
// The lock of a process that has died is free for who has waited for the lease of the lock. A
// process that only tries, and ends before that, never gets it: see docs/consensus.md.
func New(conn *Conn, opts ...casstore.Option) (*Store, error) {
	if conn == nil {
		return nil, fmt.Errorf("%w: conn is nil; zkstore.Connect makes one", driver.ErrConfig)
	}
	server := newServer(conn)
	store, err := casstore.New(server, opts...)
	if err != nil {
		return nil, err
	}
	s := &Store{Store: store, server: server}
	s.done, s.end = context.WithCancel(context.Background())
	s.work.Go(s.tidy)
	return s, nil
}

// Close ends the store's work in the background, as the Close of [casstore.Store] does.
func (s *Store) Close() error {
	s.end()
	s.work.Wait()
	return s.Store.Close()
}

// Server makes the adapter alone, which [New] gives to casstore.New. The nodes of deleted
// entries stay until a [Store] deletes them.
func Server(conn *Conn) casstore.Server { return newServer(conn) }

func newServer(conn client) *server {
	s := &server{conn: conn, roots: map[string]*root{}}
	s.queue = newQueue(func(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
		return call(ctx, s, func() ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	})
	return s
}

// client is the part of a [Conn] that the adapter uses.
type client interface {
	State() zk.State
	SessionID() int64
	Sync(path string) (string, error)
	Get(path string) ([]byte, *zk.Stat, error)
	GetW(path string) ([]byte, *zk.Stat, <-chan zk.Event, error)
	ExistsW(path string) (bool, *zk.Stat, <-chan zk.Event, error)
	Children(path string) ([]string, *zk.Stat, error)
	ChildrenW(path string) ([]string, *zk.Stat, <-chan zk.Event, error)
	Create(path string, data []byte, flags int32, acl []zk.ACL) (string, error)
	GetACL(path string) ([]zk.ACL, *zk.Stat, error)
	Multi(ops ...any) ([]zk.MultiResponse, error)

	absent() error
	listen(w *watching) (stop func())
}

// server is a ZooKeeper to package casstore.
type server struct {
	conn   client
	newest atomic.Int64 // the highest number that was seen
	// answered is the session of the last answer; zero: it is not known.
	answered atomic.Int64
	left     atomic.Int64 // entries deleted by this process, whose nodes stay for a time
	*queue

	rooting sync.Mutex
	roots   map[string]*root
}
