package main

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// slot is the knowledge of a cell's processes about a key, without asking Redis.
type slot struct {
	holder atomic.Int64 // who is inside: 0: the section is empty
	// For the hand-over: how many sections there have been, and when the last
	// one gave up the lock, in nanoseconds of the system's clock.
	grants   atomic.Int64
	released atomic.Int64
	by       atomic.Int64
}

// proof is memory that all processes of a cell share, a slot for each key: there
// they meet if a lock lets two in, whether or not they are of one process. It
// costs two uncontended atomic writes a section, little enough to be checked in
// every workload.
type proof struct{ slots []slot }

// openProof maps the file at path, which the parent made large enough. The
// mapping lives as long as the process.
func openProof(path string, keys int) (proof, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return proof{}, err
	}
	defer f.Close() //nolint:errcheck // a mapping does not need its file
	fd := int(f.Fd())
	mem, err := syscall.Mmap(fd, 0, proofSize(keys), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return proof{}, os.NewSyscallError("mmap", err)
	}
	return proof{unsafe.Slice((*slot)(unsafe.Pointer(&mem[0])), keys)}, nil
}

// makeProof makes the file.
func makeProof(path string, keys int) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(path, int64(proofSize(keys)))
}

func proofSize(keys int) int { return keys * int(unsafe.Sizeof(slot{})) }

// enter notes that a goroutine is in the section of a key, and reports false when
// another is. Of two that overlap the later sees it.
func (p proof) enter(key int, who int64) bool {
	return p.slots[key].holder.CompareAndSwap(0, who)
}

// leave undoes an enter that was true.
func (p proof) leave(key int) { p.slots[key].holder.Store(0) }
