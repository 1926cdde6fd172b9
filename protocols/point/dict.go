package point

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Hash is the seeded 128-bit sum of the bytes a series was written with. Two different byte strings share one with a
// probability of 2^-128, and no sender can aim at it: the sum stands for the bytes.
type Hash struct{ Lo, Hi uint64 }

// Dict numbers the series of one table for one generation of a gateway's streams. Numbers are dense from 0 and never
// change within a Dict. All methods are safe for concurrent use; look-ups of present series need no lock.
type Dict struct {
	// Constant after NewDict.
	seeds     [2]maphash.Seed
	seriesMax int

	raw   table      // raw bytes of a series → SeriesID
	lines table      // raw bytes of a line's key → index into lineKeys
	canon labelTable // canonical labels → SeriesID

	rawLen atomic.Int64 // entries of raw; at most a decoder's worth over the bound

	weight  atomic.Int64                      // of all series; written under mu
	limits  atomic.Pointer[LabelLimits]       // nil: none but the format's
	guard   func(known int, again bool) error // nil: every series finds room; set before the Dict is used
	before  atomic.Pointer[Dict]              // that this one follows; nil: none
	limited atomic.Uint64                     // series beyond them

	relabeller  Relabeller    // nil: series are stored as they come; set before the Dict is used
	dropped     atomic.Uint64 // the number of droppedLabels plus 1; 0: no series was dropped
	droppedRows atomic.Uint64

	twins *twins // nil: no ReplicaLabels; set before the Dict is used

	series   pages[Labels]
	hashes   firstHashes // under which series were first seen, for LookupAfter
	lineKeys pages[atomic.Pointer[LineKey]]

	mu struct {
		sync.Mutex // guards growth of series, hashes, lineKeys and canon

		text strings.Builder // labels that were copied last, up to textBytes
	}
}

// DictSeriesMax is the default bound of a Dict. The price of a series is about 100 bytes and its labels.
const DictSeriesMax = 20_000_000

// The memory that senders can make a Dict use beside its series is bounded too (I5). Beyond these bounds everything
// goes on working, by the slow path: labels are parsed again each time.
const (
	// SpellingsPerSeries bounds the raw byte strings, and separately the line keys, that a Dict remembers: so many
	// times its bound of series. One series has several spellings when senders order its labels differently.
	SpellingsPerSeries = 2
	// LineFieldsMax bounds the fields of one LineKey.
	LineFieldsMax = 1024
)

// NewDict makes an empty Dict of at most seriesMax series (0: DictSeriesMax; never more than SeriesIDMax).
func NewDict(seriesMax int) *Dict {
	if seriesMax <= 0 {
		seriesMax = DictSeriesMax
	}
	return &Dict{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, seriesMax: min(seriesMax, SeriesIDMax)}
}

// Hash sums b.
func (d *Dict) Hash(b []byte) Hash {
	return Hash{maphash.Bytes(d.seeds[0], b), maphash.Bytes(d.seeds[1], b)}
}

// Len is the number of series.
func (d *Dict) Len() int { return d.series.len() }

// Weight is the number of series, those with long labels counted as several by the memory they cost. The bound of a Dict
// counts it.
func (d *Dict) Weight() int { return int(d.weight.Load()) }

// labelsReckoned is the length up to which labels count as one series; usual ones have 200 bytes, and are in memory twice:
// here and in the index of storage.
const labelsReckoned = 400

func weightOf(labels []byte) int64 { return 1 + int64(len(labels)/labelsReckoned) }

// Labels gives the labels of a series that this Dict numbered.
func (d *Dict) Labels(id SeriesID) Labels {
	if id >= twinFirst {
		id = d.twins.at(id).series
	}
	return *d.series.at(uint32(id))
}

// Lookup finds the series by the hash of its raw bytes.
func (d *Dict) Lookup(h Hash) (SeriesID, bool) {
	id, ok := d.raw.get(h)
	return SeriesID(id), ok
}

// LookupAfter is Lookup for senders that repeat their series in the same order: it tries the number after prev first,
// which lies beside it in memory. Any prev is allowed.
func (d *Dict) LookupAfter(prev SeriesID, h Hash) (SeriesID, bool) {
	if next := uint32(prev) + 1; d.hashes.is(next, h) {
		return SeriesID(next), true
	}
	if d.twins != nil {
		if next, ok := d.twins.lookupAfter(prev, h); ok {
			return next, true
		}
	}
	return d.Lookup(h)
}

// Intern gives labels their number, a new one if need be, and remembers that raw bytes with hash h mean them.
// The error is Throttled when the Dict is full, Invalid when the series is new and exceeds the Dict's LabelLimits.
func (d *Dict) Intern(h Hash, labels Labels) (SeriesID, error) {
	id, err := d.number([]byte(labels), labels, h, true)
	d.remember(h, id, err)
	return id, err
}

// InternBytes is Intern for labels in the caller's memory, which it may reuse: they are copied if they are new.
func (d *Dict) InternBytes(h Hash, labels []byte) (SeriesID, error) {
	id, err := d.number(labels, "", h, true)
	d.remember(h, id, err)
	return id, err
}

func (d *Dict) remember(h Hash, id SeriesID, err error) {
	if err == nil && d.rawLen.Load() < d.spellingsMax() && d.raw.put(h, uint32(id)) {
		d.rawLen.Add(1)
	}
}

func (d *Dict) spellingsMax() int64 { return SpellingsPerSeries * int64(d.seriesMax) }

// InternLabels gives labels their number without remembering raw bytes; first is kept for
// LookupAfter if the series is new, unless it is zero.
func (d *Dict) InternLabels(labels Labels, first Hash) (SeriesID, error) {
	return d.number([]byte(labels), labels, first, true) // the conversion copies nothing
}

// InternTaken is Intern for labels that another Dict accepted already and that may have acked rows: no limit applies.
func (d *Dict) InternTaken(h Hash, labels Labels) (SeriesID, error) {
	id, err := d.number([]byte(labels), labels, h, false)
	d.remember(h, id, err)
	return id, err
}

// number gives labels their number, that of a twin where the Dict has ReplicaLabels and the labels have them. owned is the same labels in memory
// that the Dict may keep, or "". limited is true for labels from outside.
func (d *Dict) number(labels []byte, owned Labels, first Hash, limited bool) (SeriesID, error) {
	if limited && d.twins != nil {
		return d.numberTwin(labels, owned, first)
	}
	return d.numberSeries(labels, owned, first, limited)
}

// numberSeries is number for a series. With limited, labels that have no number yet are checked against the limits, after the Relabeller
// rewrote them.
func (d *Dict) numberSeries(labels []byte, owned Labels, first Hash, limited bool) (SeriesID, error) {
	if limited && d.relabeller != nil {
		out, err := d.relabel(labels)
		if err != nil {
			return 0, err
		}
		labels, owned = []byte(out), "" // it may lie within a larger set
	}
	ch := maphash.Bytes(d.seeds[0], labels)
	if id, ok := d.canon.get(ch, labels, &d.series); ok {
		return SeriesID(id), nil
	}
	if limited {
		if err := d.limit(labels); err != nil {
			return 0, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id, ok := d.canon.get(ch, labels, &d.series); ok { // another goroutine was quicker
		return SeriesID(id), nil
	}
	if limited {
		if err := d.askLocked(labels); err != nil {
			return 0, err
		}
	}
	id, err := d.addLocked(ch, labels, owned, first)
	return SeriesID(id), err
}

// addLocked numbers labels that have no number yet. With the zero Hash as first they are not found by LookupAfter.
func (d *Dict) addLocked(sum uint64, labels []byte, owned Labels, first Hash) (uint32, error) {
	if d.weight.Load() >= int64(d.seriesMax) {
		return 0, fault.Errorf(fault.Throttled, "%d series are active, with their labels the most there is memory for: rows of further ones are refused until some are gone", d.series.len())
	}
	d.weight.Add(weightOf(labels))
	if owned == "" {
		owned = d.copyLocked(labels)
	}
	if len(labels) == 0 { // before any other goroutine finds the number: it removes its rows by this
		d.dropped.Store(uint64(d.series.len()) + 1)
	}
	id := d.series.append(owned) // before hashes: a reader that finds the hash may ask for the labels
	if first != (Hash{}) {
		d.hashes.set(id, first)
	}
	d.canon.putLocked(sum, id)
	return id, nil
}

// textBytes is the size of the pieces of memory that labels are copied into. Series that come together, as those of a
// host do, are stored beside each other and mostly end together; one that stays keeps its piece, some 50 series' worth.
// The first pieces are smaller, for tables of few series.
const (
	textBytes      = 8 << 10
	textBytesFirst = 256
)

// copyLocked gives labels memory of the Dict's. Apart, each would be an object for the collector and an eighth larger.
func (d *Dict) copyLocked(labels []byte) Labels {
	if d.mu.text.Cap()-d.mu.text.Len() < len(labels) {
		size := max(textBytesFirst, min(textBytes, 2*d.mu.text.Cap()))
		d.mu.text = strings.Builder{}
		d.mu.text.Grow(max(size, len(labels)))
	}
	from := d.mu.text.Len()
	d.mu.text.Write(labels) // never moves earlier labels: there is room
	return Labels(d.mu.text.String()[from:])
}

// LineKey holds the fields seen under one line-protocol key (measurement and tags as written) and their series, in
// the order in which they were first seen. Fields never change; more fields make a new LineKey.
type LineKey struct {
	Fields []LineField

	hash  Hash
	next  atomic.Pointer[LineKey] // that was asked for behind this one, for LookupLineAfter
	stale atomic.Bool             // there is one with more fields
}

// LineField is a field of a LineKey: its name as written (escapes included) and its series.
type LineField struct {
	Name string
	ID   SeriesID
}

// LookupLine finds the LineKey of a line's key by its hash; nil when there is none.
func (d *Dict) LookupLine(h Hash) *LineKey {
	i, ok := d.lines.get(h)
	if !ok {
		return nil
	}
	return d.lineKeys.at(i).Load()
}

// LookupLineAfter is LookupLine for senders that repeat their lines in the same order: it tries the key that was found
// behind prev last time, which spares two reads of memory that is in no cache. prev may be nil, and is of this Dict.
func (d *Dict) LookupLineAfter(prev *LineKey, h Hash) *LineKey {
	if prev == nil {
		return d.LookupLine(h)
	}
	if k := prev.next.Load(); k != nil && k.hash == h && !k.stale.Load() {
		return k
	}
	k := d.LookupLine(h)
	if k != nil { // a key that was not remembered stays so
		prev.next.Store(k)
	}
	return k
}

// ExtendLine adds a field to the LineKey of a line's key and returns the new value. A field already there stays. A
// key that has LineFieldsMax fields is returned as it is; a key too many is returned and not remembered.
func (d *Dict) ExtendLine(h Hash, f LineField) *LineKey { return d.ExtendLineAll(h, 0, []LineField{f}) }

// ExtendLineAll is ExtendLine for several fields at once, all different. The first seen fields of the key are certainly
// others. The slice stays the caller's.
func (d *Dict) ExtendLineAll(h Hash, seen int, fields []LineField) *LineKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.lines.get(h)
	if !ok {
		return d.addLineLocked(h, &LineKey{hash: h, Fields: slices.Clone(fields[:min(len(fields), LineFieldsMax)])})
	}
	old := d.lineKeys.at(i).Load()
	k := &LineKey{hash: h, Fields: old.Fields}
	others := old.Fields[min(seen, len(old.Fields)):]
	for _, f := range fields {
		if len(k.Fields) < LineFieldsMax && !slices.ContainsFunc(others, func(have LineField) bool { return have.Name == f.Name }) {
			// Appending past the length of a published slice is safe: readers hold their own length, writers hold the lock.
			k.Fields = append(k.Fields, f)
		}
	}
	if len(k.Fields) == len(old.Fields) {
		return old
	}
	d.lineKeys.at(i).Store(k)
	old.stale.Store(true)
	return k
}

func (d *Dict) addLineLocked(h Hash, k *LineKey) *LineKey {
	if int64(d.lineKeys.len()) < d.spellingsMax() {
		i := d.lineKeys.grow()
		d.lineKeys.at(i).Store(k) // before lines: a reader that finds the hash may ask for the key
		d.lines.put(h, i)
	}
	return k
}
