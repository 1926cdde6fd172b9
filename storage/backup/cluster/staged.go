package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
)

// stagedTurn is a server that is to be asked for the staged rows of a table.
type stagedTurn struct {
	f  *stagedFile
	at topology.ServerID
}

// staged backs up the rows of all tables that wait for their leaders, on all servers, and returns the numbers of their files by table. A frame that several
// servers hold is written once. Servers that do not answer are asked again together, when all others have been; in each round once, and first for other tables than before.
func (w *writer) staged(ctx context.Context, tables []string) (map[string][]uint64, error) {
	var todo []stagedTurn
	for _, table := range tables {
		servers, err := w.src.Stagers(ctx, table)
		if err != nil {
			return nil, err
		}
		f := &stagedFile{w: w, table: table, seen: map[uint64]bool{}}
		for _, id := range servers {
			todo = append(todo, stagedTurn{f, id})
		}
	}
	out := map[string][]uint64{}
	var since time.Time // of the second round
	for round := 0; len(todo) > 0; round++ {
		if round > 0 {
			if err := pause(ctx); err != nil {
				return nil, err
			}
		}
		if round == 1 {
			since = time.Now()
		}
		var failed, notAsked []stagedTurn
		away := map[topology.ServerID]error{} // in this round
		for i, x := range todo {
			err, skip := away[x.at]
			if !skip {
				err = w.stagedOn(ctx, x)
			}
			if fault.Is(err, fault.Unavailable) {
				away[x.at] = err
			}
			if ctx.Err() != nil || errors.Is(err, errPlace) {
				return nil, err
			}
			switch {
			case err == nil:
			case round > 0 && time.Since(since) > w.set.Patience:
				w.lacks("rows of table %q that wait on server %s, unless another one has them too: %v", x.f.table, x.at, err)
			case skip:
				notAsked = append(notAsked, x)
			default:
				failed = append(failed, x)
			}
			if i+1 == len(todo) || todo[i+1].f != x.f { // one file of few rows in memory at a time
				if err := x.f.flush(ctx); err != nil {
					return nil, err
				}
				out[x.f.table] = x.f.seqs
			}
		}
		todo = slices.Concat(notAsked, failed)
	}
	return out, nil
}

// stagedOn asks one server.
func (w *writer) stagedOn(ctx context.Context, x stagedTurn) error {
	server, err := w.server(x.at)
	if err != nil {
		return err
	}
	return server.StagedFrames(ctx, x.f.table, func(b []byte) error { return x.f.add(ctx, b) })
}

// stagedFile gathers frames into files.
type stagedFile struct {
	w     *writer
	table string
	seen  map[uint64]bool // frames
	b     []byte
	seqs  []uint64
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
	f.seqs, f.b = append(f.seqs, seq), nil
	return nil
}
