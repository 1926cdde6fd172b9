package segment

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A metric has a series of each host, and these are in all pages of definitions: for the labels of 200 series 20,000 were decoded, in each segment of each narrow
// partition that the first query after a start visits. Postings have the labels of all series in few pages, from which those of some are put together:
//
//	host    h1 ─▶ 0–100     h2 ─▶ 101–201   …         series 7:    host="h1", region="r3"
//	region  r1 ─▶ 101–201   r3 ─▶ 0–100     …   ───▶  series 108:  host="h2", region="r1"
//
// Names come in order, as in the canonical form of labels.

// assembly is labels of series that are put together.
type assembly struct {
	ids    []uint32 // rise
	labels [][]byte // of each distinct name and value, in canonical form
	has    []struct{ series, label uint32 }
	sizes  []int // of the labels of each series
	bytes  int64 // of all
	room   int64 // bytes of runs that may still be read

	grow   func(bytes int64) error // books memory; nil: it is the Cache's
	booked int64
}

// assemblyStep is how much memory an assembly books at a time.
const assemblyStep = 64 << 10

// book books the memory that the assembly needs by now: the labels once more in the end, and the parts that hold them until then.
func (a *assembly) book() error {
	need := a.bytes + 8*int64(len(a.has)) + 64*int64(len(a.labels)) + 24*int64(len(a.sizes))
	if a.grow == nil || need-a.booked < assemblyStep {
		return nil
	}
	more := need + assemblyStep - a.booked
	if err := a.grow(more); err != nil {
		return err
	}
	a.booked += more
	return nil
}

// runBytesPerDefinition is how many bytes of runs are read rather than a definition, which has some ten labels: a run has about two bytes.
const runBytesPerDefinition = 16

// assembles returns how many bytes of runs may be read to put labels of series together; 0: their definitions are in fewer pages than postings of all names. Where the runs are short a page of
// either costs about as much, but those of one value can be long: of a label that changes from each series to the next they are as many as the series.
func assembles(names []labelName, ids *roaring.Bitmap) (runBytes int64) {
	postings := 0
	for i := range names {
		postings += len(names[i].firsts)
	}
	if n := pagesOf(ids, math.MaxInt); postings > 0 && n >= postings {
		return int64(n) * pageDefinitions * runBytesPerDefinition
	}
	return 0
}

// assemble returns the labels of the series among ids, which rise, that match ms, in that order, as parts of one string; nil if they are longer than most bytes together. short is true if
// it would read more than runBytes of runs. grow books the memory while the labels are put together, and is called with less than zero at the end; its error is returned. Nil: no memory is booked.
func (r *Reader) assemble(names []labelName, ids []uint32, ms []*labels.Matcher, most, runBytes int64, grow func(bytes int64) error) (_ []point.Labels, short bool, err error) {
	a := assembly{ids: ids, sizes: make([]int, len(ids)), room: runBytes, grow: grow}
	defer func() {
		if a.booked > 0 {
			err = cmp.Or(err, grow(-a.booked))
		}
	}()
	for i := range names {
		if err := r.assembleName(&a, &names[i], onlyValue(ms, names[i].name), most); err != nil {
			return nil, false, err
		}
		if a.bytes > most || a.room < 0 {
			return nil, a.room < 0, nil
		}
	}
	out := a.end()
	for _, l := range out {
		if !l.Valid() {
			return nil, false, r.corrupt([]byte{keyNames}, errForm("labels of a series"))
		}
	}
	return out, false, nil
}

// assembleName adds the label of one name; only is its value if all series have the same, and need not be looked for.
func (r *Reader) assembleName(a *assembly, n *labelName, only string, most int64) (err error) {
	if only != "" {
		a.begin(n.name, only)
		for i := range a.ids {
			a.add(i)
		}
		return a.book()
	}
	var bad, refused error
	err = r.eachValue(n, 0, len(n.firsts), func(value string, runs cursor) bool {
		if a.room -= int64(len(runs.b)); a.room < 0 {
			return false
		}
		a.begin(n.name, value)
		bad = eachCommon(runs, a.ids, a.add)
		refused = a.book()
		return bad == nil && refused == nil && a.bytes <= most
	})
	if err == nil {
		err = refused
	}
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return err
}

// onlyValue is the value of a label that all series have which fulfil ms; "": they may differ, or lack it.
func onlyValue(ms []*labels.Matcher, name string) string {
	for _, m := range ms {
		if m.Name == name && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}

// begin makes a label the one that add adds. One that no series had makes room for it.
func (a *assembly) begin(name, value string) {
	last := len(a.labels) - 1
	if last < 0 || len(a.has) > 0 && a.has[len(a.has)-1].label == uint32(last) {
		a.labels = append(a.labels, nil)
		last++
	}
	l := append(binary.AppendUvarint(a.labels[last][:0], uint64(len(name))), name...)
	a.labels[last] = append(binary.AppendUvarint(l, uint64(len(value))), value...)
}

// add adds the label to a series.
func (a *assembly) add(series int) {
	last := len(a.labels) - 1
	a.has = append(a.has, struct{ series, label uint32 }{uint32(series), uint32(last)})
	a.sizes[series] += len(a.labels[last])
	a.bytes += int64(len(a.labels[last]))
}

// end returns the labels of each series.
func (a *assembly) end() []point.Labels {
	buf := make([]byte, a.bytes)
	at, from := make([]int, len(a.sizes)), 0 // where the next label of each series is written
	for i, n := range a.sizes {
		at[i] = from
		from += n
	}
	for _, h := range a.has {
		at[h.series] += copy(buf[at[h.series]:], a.labels[h.label])
	}
	all, out := point.Labels(buf), make([]point.Labels, len(a.sizes))
	for i, n := range a.sizes {
		out[i], all = all[:n], all[n:]
	}
	return out
}

// eachCommon calls f with the places of the ids, which rise, that a posting has, too. It reads no further than the last id.
func eachCommon(c cursor, ids []uint32, f func(i int)) error {
	at, i := uint64(0), 0
	for len(c.b) > 0 && i < len(ids) {
		lo := at + c.uvarint()
		at = lo + c.uvarint()
		if c.bad || lo > 1<<32 || at <= lo || at > 1<<32 {
			return errForm("posting")
		}
		for i += gallop(ids[i:], lo); i < len(ids) && uint64(ids[i]) < at; i++ {
			f(i)
		}
	}
	return nil
}
