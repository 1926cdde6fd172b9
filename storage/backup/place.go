package backup

import (
	"context"
	"io"
)

// Place holds backups: a directory (Dir), or a bucket of an object store (package s3). Names are relative, with slashes:
// "20261122T070552.335Z.backup", "segments/fffffffffffffffe-1229.seg". Methods may be called from several goroutines. Errors:
// Unavailable, Canceled, and those listed below.
type Place interface {
	// String returns the form in which messages name the place.
	String() string

	// List returns the files directly in a folder ("": the top) with their sizes. A folder that does not exist is empty.
	List(ctx context.Context, folder string) (map[string]int64, error)
	// Read opens a file, and returns its size. The reader's errors are Corrupt where the bytes are lost, and Unavailable where
	// another try may help. Errors: NotFound.
	Read(ctx context.Context, name string) (io.ReadCloser, int64, error)
	// Put writes a file of size bytes. It appears whole or not at all; it is durable after the next Sync of its folder. An error of r
	// ends it.
	Put(ctx context.Context, name string, size int64, r io.Reader) error
	// Remove removes a file; one that does not exist is no error.
	Remove(ctx context.Context, name string) error
	// RemovePartial removes what interrupted Puts left behind. Its caller holds the lock.
	RemovePartial(ctx context.Context) error
	// Sync makes the names in a folder durable.
	Sync(folder string) error

	// Lock keeps other writers out until the lock is closed. The holder is the identity of a store. Errors: Unavailable (another
	// writer has it).
	Lock(ctx context.Context, holder string) (io.Closer, error)
	// Streams returns the number of files that are read or written at once for the best rate.
	Streams() int
}

// linker is a Place that can hold hard links to files of the store.
type linker interface {
	// Link reports whether the link was made.
	Link(from, name string) bool
	// LinkOut links a file of the place into a store, and reports whether the link was made.
	LinkOut(name, to string) bool
}
