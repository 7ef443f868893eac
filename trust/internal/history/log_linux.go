package history

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_MONOTONIC, in nanoseconds: one clock for all processes of a
// machine (clock_gettime(2)), and the clock of the leases. It goes on while a
// process is stopped.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no kernel lacks this clock
	}
	return ts.Nano()
}

// header is the number of records, at the beginning of the file.
const header = 64

// Log is the memory of one process: a mapped file, so that records are there for
// others at once, and stays when the process is killed. It is safe for concurrent
// use.
type Log struct {
	memory  []byte
	n       *atomic.Int64
	records []Record
}

// Create makes a log for that many records. The file is sparse.
func Create(path string, capacity int) (*Log, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	size := header + capacity*int(unsafe.Sizeof(Record{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &Log{
		memory:  memory,
		n:       (*atomic.Int64)(unsafe.Pointer(&memory[0])),
		records: unsafe.Slice((*Record)(unsafe.Pointer(&memory[header])), capacity),
	}, nil
}

// Close ends the log; none of its records may be touched any more.
func (l *Log) Close() error { return unix.Munmap(l.memory) }

// Begin records that an operation is about to be called. It panics when the log is full:
// unrecorded operations cannot be judged.
func (l *Log) Begin(r Record) *Record {
	i := l.n.Add(1) - 1
	p := &l.records[i]
	kind := r.Kind
	r.Kind = 0
	*p = r
	p.Call = Now()
	// Last: in a record of no kind its process was killed.
	atomic.StoreUint32((*uint32)(&p.Kind), uint32(kind))
	return p
}

// End records that the operation has returned. All else must be in the record already.
func (r *Record) End(o Outcome) {
	r.Return = Now()
	atomic.StoreUint32((*uint32)(&r.Outcome), uint32(o))
}

// Trust records until when a holder trusts its lease, and whether that is its
// last word.
func (r *Record) Trust(until int64, settled bool) {
	atomic.StoreInt64(&r.Trusted, until)
	if settled {
		atomic.StoreUint32(&r.Settled, 1)
	}
}

// Load reads the log of a process that has ended, or its part so far.
func Load(path string) ([]Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	var n int64
	if _, err := f.ReadAt(bytesOf(&n, 1), 0); err != nil {
		return nil, fmt.Errorf("%s is no log: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	records := make([]Record, min(n, (info.Size()-header)/int64(unsafe.Sizeof(Record{}))))
	if len(records) == 0 {
		return nil, nil
	}
	if _, err := f.ReadAt(bytesOf(&records[0], len(records)), header); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(records, func(r Record) bool { return r.Kind == 0 }), nil
}

// bytesOf is the memory of n values from the first on.
func bytesOf[T any](first *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(first)), n*int(unsafe.Sizeof(*first)))
}
