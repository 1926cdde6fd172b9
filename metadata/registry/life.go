package registry

import (
	"context"
	"errors"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// A copy of a store directory has the identity of the directory, and a lock of its own: neither of the two shows a process that another one has the rows
// which were acked since. So a directory has lives. Each start, each minute and each end in order begins a new one, in the directory first and then, by
// compare-and-swap, in the server's row. A directory that does not have the row's life is an older copy:
//
//	directory s1        known 4 ─▶ tried 5 ─▶ known 5 …       row of s1   4 ─▶ 5 ─▶ 6
//	a copy of it        known 4 ─────────────▶ start: the row says 5, which this directory never had: refused
//	s1 goes on after    known 5 ─▶ start: the row says 6, of the copy that ran meanwhile: refused

// Life is a stretch of time in which one process alone used a store directory. The zero Life is that of a build from before lives.
type Life struct {
	// N rises by one with each life.
	N uint64 `json:"n"`
	// Name distinguishes lives of two copies of a directory with the same N.
	Name string `json:"name"`
}

// triedMax bounds Lives.Tried: a commit that got no answer comes true within seconds, or never.
const triedMax = 8

// Lives is what a store directory keeps of its lives, durable before the row has it.
type Lives struct {
	// Known is the newest life that the row is known to have had.
	Known Life
	// Tried are later ones that were to be written into the row, of which none was seen there.
	Tried []Life
}

// After compares a directory with the life in its server's row. It returns the lives that the directory has then, and whether it is the newest: it has the row's life, or a later one,
// which a coordination store that was restored from a backup does not have.
func (l Lives) After(row Life) (Lives, bool) {
	switch {
	case row == Life{} || row == l.Known || row.N < l.Known.N:
		return l, true
	case slices.Contains(l.Tried, row):
		return Lives{Known: row}, true
	}
	return l, false
}

// Next returns the lives with one more that is to be tried, and that one.
func (l Lives) Next(row Life, name string) (Lives, Life) {
	next := Life{N: max(row.N, l.Known.N) + 1, Name: name}
	for _, t := range l.Tried {
		next.N = max(next.N, t.N+1)
	}
	tried := append(slices.Clone(l.Tried), next)
	return Lives{Known: l.Known, Tried: tried[max(0, len(tried)-triedMax):]}, next
}

// Directory is a store directory that begins a life.
type Directory struct {
	Server topology.ServerID
	Store  lease.StoreID
	Lives  Lives
	// Save stores lives in the directory, durably.
	Save func(Lives) error
	// Name returns a name that no other life has.
	Name func() string
	// Older accepts a directory that is not the newest, without the rows that were acked since.
	Older bool
}

// Newest returns an Invalid error if the server's row shows that its directory is not the newest. Errors of the store besides.
func Newest(ctx context.Context, store coord.Store, d *Directory) error {
	row, there, err := store.Get(ctx, Key(d.Server))
	if err != nil || !there {
		return err
	}
	s, err := Decode(row)
	if err != nil {
		return err
	}
	return d.newest(s)
}

func (d *Directory) newest(s Server) error {
	if _, newest := d.Lives.After(s.Life); !newest && s.Store == d.Store && !d.Older {
		return older(s, d.Lives)
	}
	return nil
}

// Begin begins a life of a directory in its server's row, and reports whether there is such a row: there is none before Register, or it is of another
// directory. Errors are Invalid (the directory is not the newest), Save's, or the store's.
func Begin(ctx context.Context, store coord.Store, d *Directory) (begun bool, err error) {
	var failed error
	for range changeTries {
		row, there, err := store.Get(ctx, Key(d.Server))
		if err != nil {
			return false, fault.Annotate(errors.Join(err, failed), "begin a life of server %q", d.Server)
		}
		if !there {
			return false, nil
		}
		s, err := Decode(row)
		if err != nil || s.Store != d.Store {
			return false, err
		}
		if err := d.newest(s); err != nil {
			return false, err
		}
		lives, _ := d.Lives.After(s.Life)
		lives, next := lives.Next(s.Life, d.Name())
		if err := d.Save(lives); err != nil {
			return false, fault.Annotate(err, "store life %d of the directory", next.N)
		}
		d.Lives = lives
		s.Life = next
		_, ok, err := store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Value: s.Encode()}})
		if err == nil && ok {
			d.Lives = Lives{Known: next}
			return true, nil
		}
		failed = err
	}
	return false, errors.Join(fault.Errorf(fault.Unavailable, "the row of server %q changed at each try: the next life of its directory is not registered", d.Server), failed)
}

func older(s Server, l Lives) error {
	return fault.Errorf(fault.Invalid, "this directory is an older copy of the store of server %q: life %d is the last it had, and life %d ran at %s since, on the directory itself or another copy of it; "+
		"rows that were acked since are not in this one: start with the directory that ran last; if that is gone for good, start once with --replace-store, on an empty directory where tables have copies, else on this one, without those rows", s.ID, l.Known.N, s.Life.N, s.Addr)
}

// Superseded returns an Invalid error if a row shows that another process runs as the server, with a copy of the directory or in its place; nil otherwise.
func (d *Directory) Superseded(row Server) error {
	_, newest := d.Lives.After(row.Life)
	if newest && (row.Store == d.Store || row.Life.N <= d.Lives.Known.N) {
		return nil
	}
	return fault.Errorf(fault.Invalid, "another process was started as server %q, at %s, with a copy of this directory or another one in its place: this process ends, and leaves its rows where they are; stop one of the two, and keep the directory of the other",
		d.Server, row.Addr)
}
