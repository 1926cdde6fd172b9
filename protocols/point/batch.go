package point

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Batch is the rows of one request, in columns: row i is (IDs[i], Times[i], Values[i]). Native histograms, exemplars
// and metadata lie beside them. Decoders append; no code keeps a slice of the batch after Put.
type Batch struct {
	Dict *Dict // gave the numbers in IDs

	// Smear is the sender's wish for all of the rows.
	Smear Smear

	// Atomic asks for all rows of the batch or none: they go into one frame of one partition (C94).
	Atomic bool

	IDs    []SeriesID
	Times  []Nanos
	Values []float64

	Hists     []HistRow
	Exemplars []ExemplarRow
	Metadata  []MetadataRow

	// ItemRows[i] is the number of float rows that stood before item i of the request; an item is a line (line protocol)
	// or a time series (remote write). With it a row that is refused later still finds its line.
	ItemRows []uint32

	// Refused rows.
	Refused     []Refusal // the first RefusalsMax, for the answer
	RefusedRows int       // their total, without exemplars
	// RefusedExemplars counts the exemplars that were removed by themselves: the samples beside them are kept.
	RefusedExemplars int
	// Unkept are the places of all rows that a storage server refused while the batch was written. They count as refused, and are the only such rows that
	// are still in the batch.
	Unkept       Unkept
	StringFields int // line protocol string fields that became no sample

	// Fields of line protocol that share their series with another measurement's field: the first MergesMax, and their number.
	Merges []Merge
	Merged int
}

// Unkept lists places in IDs and in Hists, rising.
type Unkept struct{ Floats, Hists []int }

// Merge is two fields of different measurements that form one series: `a_b c=1` and `a b_c=2` are a_b_c.
type Merge struct {
	Metric                       string
	Measurement, Field           string // that came now, as written
	OtherMeasurement, OtherField string // that came before
}

// MergesMax bounds the merges that a batch names.
const MergesMax = 16

// HistRow is one native histogram sample. H is in the encoding of AppendHistogram, in memory of its own.
type HistRow struct {
	ID   SeriesID
	Time Nanos
	H    []byte
}

// ExemplarLabelsMax bounds the labels of an exemplar, in bytes of their canonical form. Prometheus accepts 128 characters,
// which are less than 600 bytes; some senders write more.
const ExemplarLabelsMax = 4 << 10

// ExemplarsRequestMax bounds the labels of all exemplars of one request: in remote write 2.0 any number of exemplars can refer to
// one symbol.
const ExemplarsRequestMax = 16 << 20

// ExemplarRow is one exemplar of a series. Labels may lack a metric name.
type ExemplarRow struct {
	ID     SeriesID
	Time   Nanos
	Value  float64
	Labels Labels
}

// Compare orders the exemplars of a series: by time, then by value as numbers go, as Prometheus gives them. It is 0 only
// for the same exemplar, whatever the IDs.
func (e ExemplarRow) Compare(o ExemplarRow) int {
	return cmp.Or(
		cmp.Compare(e.Time, o.Time),
		cmp.Compare(e.Value, o.Value),
		cmp.Compare(math.Float64bits(e.Value), math.Float64bits(o.Value)), // zeros with signs, kinds of NaN
		cmp.Compare(e.Labels, o.Labels),
	)
}

// MetadataRow describes a metric family. Type is the OpenMetrics name in lower case: counter, gauge, histogram,
// gaugehistogram, summary, info, stateset, unknown.
type MetadataRow struct {
	Metric, Type, Help, Unit string
}

const (
	// MetadataBytesMax bounds a row of metadata, all its texts together.
	MetadataBytesMax = 16 << 10
	// MetadataRequestMax bounds the texts of all rows of metadata of one request: in remote write 2.0 any number of families
	// can refer to one help text.
	MetadataRequestMax = 16 << 20
)

// Bytes is the length of all texts of the row.
func (r *MetadataRow) Bytes() int { return len(r.Metric) + len(r.Type) + len(r.Help) + len(r.Unit) }

// Fit makes the row fit into MetadataBytesMax: a help text is cut, as the end of one that long is never read. The error is
// Invalid: the identity of the family is too long by itself.
func (r *MetadataRow) Fit() error {
	room := MetadataBytesMax - len(r.Metric) - len(r.Type) - len(r.Unit)
	if room < 0 {
		return fault.Errorf(fault.Invalid, "metadata of %.64q with a name and a unit of %d bytes, at most %d are taken", r.Metric, len(r.Metric)+len(r.Unit), MetadataBytesMax)
	}
	if len(r.Help) <= room {
		return nil
	}
	for room > 0 && !utf8.RuneStart(r.Help[room]) {
		room--
	}
	r.Help = strings.Clone(r.Help[:room]) // the whole goes with the request
	return nil
}

// RefusalsMax bounds the reasons kept of one request; beyond it rows are only counted.
const RefusalsMax = 100

// Refusal says why a piece of a request was refused.
type Refusal struct {
	Item   int        // line number or index of the time series, from 1; 0 when it is the whole request
	Text   string     // the line or series, cut to a readable length
	Reason string     // the mistake
	Kind   fault.Kind // Invalid unless a limit or a state refused it
	// Exemplar: only exemplars were refused.
	Exemplar bool
}

// Refuse records refused rows with the reason.
func (b *Batch) Refuse(rows int, r Refusal) {
	b.RefusedRows += rows
	if len(b.Refused) < RefusalsMax {
		b.Refused = append(b.Refused, r)
	}
}

// RefuseExemplars records exemplars that are not kept. Reasons of rows come first: text, which gives the series, is not called where there is no room.
func (b *Batch) RefuseExemplars(n int, item int, text func() string, reason string) {
	b.RefusedExemplars += n
	if len(b.Refused) < RefusalsMax {
		b.Refused = append(b.Refused, Refusal{Item: item, Text: text(), Reason: reason, Kind: fault.Invalid, Exemplar: true})
	}
}

// FirstRefusedRow returns the first refusal that is not of an exemplar; false: none is kept.
func (b *Batch) FirstRefusedRow() (Refusal, bool) {
	i := slices.IndexFunc(b.Refused, func(r Refusal) bool { return !r.Exemplar })
	if i < 0 {
		return Refusal{}, false
	}
	return b.Refused[i], true
}

// RefusedMore reports whether anything but exemplars was refused.
func (b *Batch) RefusedMore() bool {
	return b.RefusedRows > 0 || slices.ContainsFunc(b.Refused, func(r Refusal) bool { return !r.Exemplar })
}

// Append adds a float row.
func (b *Batch) Append(id SeriesID, t Nanos, v float64) {
	b.IDs = append(b.IDs, id)
	b.Times = append(b.Times, t)
	b.Values = append(b.Values, v)
}

// BeginItem notes that the rows from here on belong to the next item of the request.
func (b *Batch) BeginItem() { b.ItemRows = append(b.ItemRows, uint32(len(b.IDs))) }

// Item gives the number, from 1, of the item that float row i came from; 0 when unknown.
func (b *Batch) Item(row int) int {
	return sort.Search(len(b.ItemRows), func(i int) bool { return b.ItemRows[i] > uint32(row) })
}

// Truncate drops the float rows from n on, as when a line proves bad half way.
func (b *Batch) Truncate(n int) {
	b.IDs, b.Times, b.Values = b.IDs[:n], b.Times[:n], b.Values[:n]
}

// Rows counts float and histogram samples.
func (b *Batch) Rows() int { return len(b.IDs) + len(b.Hists) }

// Memory of a row in bytes, without the memory that it points to.
const (
	FloatBytes    = 20 // a number, a time, a value
	itemBytes     = 4
	histBytes     = 40
	exemplarBytes = 40
	metadataBytes = 64
)

// Bytes is the memory that the rows of the batch need, of all kinds. It walks over histograms, exemplars and metadata.
func (b *Batch) Bytes() int {
	n := FloatBytes*len(b.IDs) + itemBytes*len(b.ItemRows) + histBytes*len(b.Hists) + exemplarBytes*len(b.Exemplars) + metadataBytes*len(b.Metadata)
	for i := range b.Hists {
		n += len(b.Hists[i].H)
	}
	for i := range b.Exemplars {
		n += len(b.Exemplars[i].Labels)
	}
	for i := range b.Metadata {
		n += b.Metadata[i].Bytes()
	}
	return n
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.Hists)
	clear(b.Exemplars)
	clear(b.Metadata)
	clear(b.Refused)
	clear(b.Merges)
	*b = Batch{
		IDs: b.IDs[:0], Times: b.Times[:0], Values: b.Values[:0],
		Hists: b.Hists[:0], Exemplars: b.Exemplars[:0], Metadata: b.Metadata[:0],
		ItemRows: b.ItemRows[:0], Refused: b.Refused[:0], Merges: b.Merges[:0],
		Unkept: Unkept{b.Unkept.Floats[:0], b.Unkept.Hists[:0]},
	}
}

// Bounds of the memory that a pooled batch may keep: 20 bytes a float row, up to 64 bytes a row of the others.
const (
	batchRowsKept = 1 << 20
	batchSideKept = 1 << 16
)

var batches = sync.Pool{New: func() any { return new(Batch) }}

// GetBatch returns an empty batch from the pool for rows numbered by d.
func GetBatch(d *Dict) *Batch {
	b := batches.Get().(*Batch)
	b.Dict = d
	return b
}

// Put returns a batch to the pool. The caller may keep its strings and nothing else.
func (b *Batch) Put() {
	if max(cap(b.IDs), cap(b.ItemRows)) > batchRowsKept || max(cap(b.Hists), cap(b.Exemplars), cap(b.Metadata)) > batchSideKept {
		return
	}
	b.Reset()
	batches.Put(b)
}
