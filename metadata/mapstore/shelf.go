package mapstore

import (
	"cmp"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Info is a METADATA file without its map.
type Info struct {
	Table string
	Txn   peer.TxnID
	Base  peer.TxnID // the transaction before it; zero: none
	Seq   uint64
	// Digest is the map's. 0: a build from before digests wrote the file, and Sum is the xxhash64 of the encoded map.
	Digest, Sum uint64
	Bytes       int // of the encoded map, about
}

// differs reports whether a file certainly differs from the one here with the same name.
func (i Info) differs(f *peer.File) bool {
	switch {
	case i.Seq != f.Seq:
		return true
	case i.Digest != 0 && f.Digest != 0:
		return i.Digest != f.Digest
	}
	return i.Sum != 0 && f.Sum != 0 && i.Sum != f.Sum
}

// Mark is a moment in a server's life.
type Mark uint64

// Shelf is the list of files on a metadata server's disk, and decides which it may delete. Like Txn it is pure.
//
//	seq      …  6  7  8  9 │10│ 11  11          │10│: the committed transaction, by the row
//	         └──────┬─────┘     └─┬──┘
//	          decided: either     undecided: a coordinator may have counted them, and may yet swap the row
//	          overtaken or lost
//
// A decided file is deleted when it is old by transactions (C10). Undecided ones are deleted only when there are many, and
// only after the row was touched: a coordinator that counted a file before that cannot swap the row any more, and must
// ask again, which gives the file a newer mark.
type Shelf struct {
	tables map[string]map[peer.TxnID]*kept
	now    Mark
}

// A file that was found at a start has mark 0, as if it had been confirmed before every touch of the row. That is
// right for those that the process before confirmed: the row is touched before they are deleted, so a coordinator
// that counted them cannot swap it any more, and asks again.
type kept struct {
	Info
	mark Mark // when it was last confirmed to a coordinator
}

// NewShelf begins with the files found on the disk.
func NewShelf(found []Info) *Shelf {
	s := &Shelf{tables: map[string]map[peer.TxnID]*kept{}, now: 1}
	for _, i := range found {
		s.put(i, 0)
	}
	return s
}

func (s *Shelf) put(i Info, m Mark) {
	t := s.tables[i.Table]
	if t == nil {
		t = map[peer.TxnID]*kept{}
		s.tables[i.Table] = t
	}
	t[i.Txn] = &kept{i, m}
}

// Put notes that a file is durable, and that this is about to be confirmed to a coordinator.
func (s *Shelf) Put(i Info) {
	s.now++
	s.put(i, s.now)
}

// Remove notes that a file is not there, or not whole.
func (s *Shelf) Remove(table string, txn peer.TxnID) {
	delete(s.tables[table], txn)
	if len(s.tables[table]) == 0 {
		delete(s.tables, table)
	}
}

// Get finds a file.
func (s *Shelf) Get(table string, txn peer.TxnID) (Info, bool) {
	if e := s.tables[table][txn]; e != nil {
		return e.Info, true
	}
	return Info{}, false
}

// Newest gives the file with the highest sequence number.
// Of several with one number, undecided proposals, the highest name: any will do, and all callers should see the same.
func (s *Shelf) Newest(table string) (newest Info, ok bool) {
	for _, e := range s.tables[table] {
		if !ok || e.Seq > newest.Seq || e.Seq == newest.Seq && slices.Compare(e.Txn[:], newest.Txn[:]) > 0 {
			newest, ok = e.Info, true
		}
	}
	return newest, ok
}

// Mark gives the present moment: before the row is read or touched.
func (s *Shelf) Mark() Mark { return s.now }

// Tables lists the tables of which there are files, sorted.
func (s *Shelf) Tables() []string {
	names := make([]string, 0, len(s.tables))
	for name := range s.tables {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Links gives a transaction and those before it, newest first, as far as there are files.
func (s *Shelf) Links(table string, txn peer.TxnID) []Link {
	var links []Link
	for {
		i, ok := s.Get(table, txn)
		if !ok || len(links) > 0 && i.Seq >= links[len(links)-1].Seq {
			return links
		}
		links = append(links, Link{Txn: txn, Base: i.Base, Seq: i.Seq})
		txn = i.Base
	}
}

// Decided lists deletable files: those older than the keep transactions before the committed one.
// With committed.Seq 10 and keep 3 those up to 7, and never the committed one itself. The ones between stay for readers
// that are fetching them.
func (s *Shelf) Decided(table string, committed Row, keep int) []Info {
	return s.list(table, func(e *kept) bool {
		return e.Seq <= committed.Seq && e.Txn != committed.Txn && e.Seq+uint64(keep) <= committed.Seq
	})
}

// Undecided counts files above the committed transaction.
func (s *Shelf) Undecided(table string, committed Row) int {
	n := 0
	for _, e := range s.tables[table] {
		if e.Seq > committed.Seq {
			n++
		}
	}
	return n
}

// Abandoned lists undecided files that were not confirmed to a coordinator since before. committed is the row as of after it was touched,
// which was after before.
func (s *Shelf) Abandoned(table string, committed Row, before Mark) []Info {
	return s.list(table, func(e *kept) bool {
		return e.Seq > committed.Seq && e.mark <= before
	})
}

func (s *Shelf) list(table string, goes func(*kept) bool) []Info {
	var out []Info
	for _, e := range s.tables[table] {
		if goes(e) {
			out = append(out, e.Info)
		}
	}
	slices.SortFunc(out, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), slices.Compare(a.Txn[:], b.Txn[:]))
	})
	return out
}

// Take decides about a file that a coordinator wants stored: it is here already (true), it must be written,
// or it is refused, as Corrupt when the file here under that name differs. Written or not, Put it before you
// confirm it.
func (s *Shelf) Take(f *peer.File) (here bool, err error) {
	switch {
	case CheckName(f.Table) != nil:
		return false, CheckName(f.Table)
	case f.Seq == 0 || f.Txn == (peer.TxnID{}):
		return false, fault.Errorf(fault.Invalid, "table %q: a file without a transaction", f.Table)
	case len(f.Map) > peer.MapBytesMax || len(f.Ops) > peer.MapBytesMax:
		return false, fault.Errorf(fault.TooLarge, "table %q: a file of %d bytes, at most %d are taken", f.Table, max(len(f.Map), len(f.Ops)), peer.MapBytesMax)
	}
	i, ok := s.Get(f.Table, f.Txn)
	if ok && i.differs(f) {
		return false, fault.Errorf(fault.Corrupt, "table %q: transaction %d is here with another content", f.Table, f.Seq)
	}
	return ok, nil
}
