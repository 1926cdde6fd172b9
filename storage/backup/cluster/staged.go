package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/storage/backup"
)

// staged backs up the rows of a table that wait for their leaders, on all servers, and returns the numbers of their files. A frame that several
// servers hold is written once.
func (w *writer) staged(ctx context.Context, table string) ([]uint64, error) {
	servers, err := w.src.Stagers(ctx, table)
	if err != nil {
		return nil, err
	}
	f := &stagedFile{w: w, seen: map[uint64]bool{}}
	for _, id := range servers {
		err := w.stagedOn(ctx, table, id, f)
		if ctx.Err() != nil || errors.Is(err, errPlace) {
			return nil, err
		}
		if err != nil {
			w.lacks("rows of table %q that wait on server %s, unless another one has them too: %v", table, id, err)
		}
	}
	return f.seqs, f.flush(ctx)
}

// stagedOn asks one server, with patience.
func (w *writer) stagedOn(ctx context.Context, table string, id topology.ServerID, f *stagedFile) error {
	for began := time.Now(); ; {
		server, err := w.server(id)
		if err == nil {
			err = server.StagedFrames(ctx, table, func(b []byte) error { return f.add(ctx, b) })
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, errPlace) || time.Since(began) > w.set.Patience {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tryPause):
		}
	}
}

// stagedFile gathers frames into files.
type stagedFile struct {
	w    *writer
	seen map[uint64]bool
	b    []byte
	seqs []uint64
}

func (f *stagedFile) add(ctx context.Context, frame []byte) error {
	sum := xxhash.Sum64(frame)
	if f.seen[sum] {
		return nil
	}
	f.seen[sum] = true
	f.b = backup.AppendStaged(f.b, frame)
	if len(f.b) < backup.StagedFileMax {
		return nil
	}
	return f.flush(ctx)
}

func (f *stagedFile) flush(ctx context.Context) error {
	if len(f.b) == 0 {
		return nil
	}
	seq, err := f.w.to.KeepStaged(ctx, f.b)
	if err != nil {
		return errors.Join(errPlace, err)
	}
	f.seqs, f.b = append(f.seqs, seq), f.b[:0]
	return nil
}
