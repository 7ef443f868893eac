// Package tuslock locks the uploads of a tus server (github.com/tus/tusd/v2) in all
// processes on the same store. It has a [handler.Locker] in place of the lockers of tusd,
// which lock uploads within a process or on a host.
//
//	uploads, err := tuslock.New(locker, "upload/{id}", core.Watchdog(10*time.Second))
//	composer := handler.NewStoreComposer()
//	files.UseIn(composer) // s3store, or any other store that all processes share
//	uploads.UseIn(composer)
//	tus, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer, DisableDownload: true})
//
// A client that has lost its connection comes back to another process, while the first process
// still reads the rest of the first connection. [core.Lease.Wanted] tells the first process
// that another request wants the upload. tusd then stops to read, stores the received bytes,
// and releases the lock.
//
// # What becomes of a request
//
//	another request wants the upload   tusd stops to read the body: 400, ERR_UPLOAD_INTERRUPTED
//	the lease is lost                  likewise
//	Config.AcquireLockTimeout ends     500, ERR_LOCK_TIMEOUT
//	core.Wait ends before that         423, ERR_UPLOAD_LOCKED
//	the ID leaves the directory        404, ERR_UPLOAD_NOT_FOUND
//	the store fails, or is closing     503, ERR_LOCK_UNAVAILABLE; the cause is logged, once a minute
//	the rule is wrong                  500, ERR_LOCK_FAILED; likewise
//
// Spellings of one file are one lock ([ID]). On a file system that does not tell upper from
// lower case, write upload/{id:lower}.
//
// tusd locks an upload for each of its methods. A HEAD stops a PATCH, as a client wants that
// comes back. A GET does so too, and downloads of one upload run one after the other: let
// another handler serve complete uploads, and let tusd refuse GET
// (handler.Config.DisableDownload).
//
// tusd (v2.9.1) forgets that it was asked to stop if it was asked before it reads the body. A
// request that gets the lock while others wait is therefore asked 100 ms after the grant, and
// not at once. If the store of tusd needs more time to find the upload, the request runs until
// its body ends, or until no byte has come for Config.NetworkTimeout.
//
// # What is not promised
//
// tusd stops to read, and then stores the bytes it has read, for up to
// Config.GracefulRequestCompletionTimeout (10 s). After the loss of a lease, another process
// may write the upload in that time. A fencing token ([core.Lease.Token]) would refuse the
// outdated write, and tusd has no place for a token: a handler.DataStore gets the offset of
// a chunk. A store that refuses a chunk which does not begin where the upload ends protects
// itself. filestore appends every chunk. The option [core.OnLost] says which upload was
// lost, and why.
package tuslock
