package database

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Open opens the database in dir as pebble.Open does. A panic over its files becomes an error. While it is opened for writing, the
// first error that pebble calls fatal, or of a flush, is returned; Pebble's goroutines are then left halted for good: two of them and a few
// MiB until the process ends. They change no file of the directory any more, and its lock is free, unless it is o.Lock. Later such errors go
// to o's own Logger and EventListener, and so do failures at which Pebble panics: of its log, which go to Fatalf, and of an fsync of a
// directory. A commit that could not be made durable then returns nil after Fatalf was called. No compaction begins before the database is
// open, nor after a fatal error.
func Open(dir string, o *pebble.Options) (*pebble.DB, error) {
	if o.ReadOnly {
		return open(dir, o)
	}
	a := &attempt{over: make(chan error, 1), logger: o.Logger}
	own := *o
	if o.EventListener != nil {
		listener := *o.EventListener
		own.EventListener = &listener
		a.background = o.EventListener.BackgroundError
	} else {
		own.EventListener = &pebble.EventListener{}
	}
	own.EventListener.BackgroundError = a.failed
	own.Logger = a
	own.FS = &files{FS: o.FS, a: a, logs: logs{a: a}}
	own.DisableTableStats = true // the goroutine that collects them uses caches which an Open that fails has closed
	compactions := newScheduler(a)
	own.Experimental.CompactionScheduler = compactions
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		db, err := open(dir, &own)
		opened <- result{db, err}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			a.end(abandoned)
			return nil, r.err
		}
		if a.end(inUse) {
			compactions.begin()
			return r.db, nil
		} // else a flush failed as the database was open: the goroutine that failed has halted with Pebble's lock
		return nil, a.free(<-a.over)
	case err := <-a.over:
		return nil, a.free(err)
	}
}

func open(dir string, o *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		p := recover()
		if cause, ok := p.(error); ok {
			db, err = nil, fmt.Errorf("pebble: %w", cause)
		} else if p != nil {
			db, err = nil, fmt.Errorf("pebble: %v", p)
		}
	}()
	return pebble.Open(dir, o)
}

// attempt stands between Pebble and the caller's logger and listener until the database is open.
type attempt struct {
	over       chan error
	logger     pebble.Logger
	background func(error)

	mu    sync.Mutex
	state state
	lock  io.Closer // of the directory; nil where the caller has it

	changes sync.RWMutex // held for reading by each operation that changes the directory
}

// state is that of an attempt. Of inUse and abandoned the first is the last: a database that a failure has halted is never handed out.
type state int

const (
	opening   state = iota
	inUse           // errors pass to the caller
	abandoned       // goroutines halt at an error, and before they change the directory
	ended           // in use until a fatal error: changes of the directory are refused
)

// end ends the opening, and reports whether a failure has not done so before.
func (a *attempt) end(s state) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != opening {
		return false
	}
	a.state = s
	return true
}

func (a *attempt) now() state {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// errEnded is returned for changes of a directory after a fatal error.
var errEnded = errors.New("the database has ended by a fatal error")

// Pebble tries again at once and for ever: a pause after each refusal leaves the processor to others.
const endedPause = 10 * time.Millisecond

// change makes a change of the directory, unless the attempt is abandoned: the next Open may be at work, and would find files gone that it
// has listed. Nor after a fatal error: it leaves open whether the last edit of the MANIFEST is durable, so that neither the tables that
// it adds nor those that it removes may be deleted, nor may another edit follow.
func (a *attempt) change(do func() error) error {
	a.changes.RLock()
	defer a.changes.RUnlock()
	switch a.now() {
	case abandoned:
		a.changes.RUnlock()
		halt()
	case ended:
		<-time.After(endedPause)
		return errEnded
	}
	return do()
}

// addition makes a file of a new name, as change does, and after a fatal error, too: the next start deletes what no MANIFEST lists.
func (a *attempt) addition(do func() error) error {
	if a.now() == ended {
		return do()
	}
	return a.change(do)
}

// fatal ends the changes of the directory of a database that is in use.
func (a *attempt) fatal() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = ended
}

// free waits for the changes of the directory that have begun, and frees its lock.
func (a *attempt) free(err error) error {
	a.changes.Lock()
	defer a.changes.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lock != nil {
		_ = a.lock.Close()
	}
	return err
}

// halts reports an error and never returns, unless the database is open.
func (a *attempt) halts(err error) {
	if a.end(abandoned) {
		a.over <- err
		halt()
	}
	if a.now() == abandoned {
		halt()
	}
}

// halt has a name of its own, so that tests that look for goroutines know it.
func halt() { select {} }

func (a *attempt) failed(err error) {
	a.halts(err)
	if a.background != nil {
		a.background(err)
	}
}

// Infof implements pebble.Logger.
func (a *attempt) Infof(format string, args ...any) { a.logger.Infof(format, args...) }

// Errorf implements pebble.Logger.
func (a *attempt) Errorf(format string, args ...any) { a.logger.Errorf(format, args...) }

// Fatalf implements pebble.Logger. The Kind and the cause of an error among args are kept. Pebble expects that the process ends, and goes on
// when it returns, as if what failed had not been begun.
func (a *attempt) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, x := range args {
		if cause, ok := x.(error); ok {
			err = &fatal{err.Error(), cause}
		}
	}
	a.halts(err)
	a.fatal()
	a.logger.Fatalf(format, args...)
}

// fatal is a message of Pebble's that contains the error.
type fatal struct {
	text  string
	cause error
}

func (f *fatal) Error() string { return f.text }

func (f *fatal) Unwrap() error { return f.cause }
