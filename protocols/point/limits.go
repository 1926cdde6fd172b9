package point

import (
	"encoding/binary"
	"hash/maphash"
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// LabelLimits bound the labels of the series that a table accepts. A zero field means the format's own bound: LabelsMax,
// LabelNameMax, LabelValueMax. A Dict checks them once a series, when it is new, and never for a sample.
type LabelLimits struct {
	Count      int // labels, the metric name included
	NameBytes  int // of a label's name
	ValueBytes int // of a label's value, the metric's name included
	SetBytes   int // of all labels of a series; 0: four times ValueBytes, at least 32 KiB
	// DryRun accepts series beyond the limits and only counts them: Dict.LabelLimited.
	DryRun bool
}

// DefaultLabelLimits are the limits that users of Prometheus and Mimir expect: far above any sensible sender's labels,
// and far below sizes that cost others.
var DefaultLabelLimits = LabelLimits{Count: 64, NameBytes: 1024, ValueBytes: 8 << 10}

// Check says which limit canonical labels exceed, or nil. The error is Invalid and names the label.
func (l *LabelLimits) Check(labels []byte) error {
	count, name, value := orMax(l.Count), orMax(l.NameBytes), orMax(l.ValueBytes)
	set := l.SetBytes
	if set == 0 {
		set = max(4*value, 32<<10)
	}
	// Most sets are shorter than every limit, and so are their parts. A pair has four bytes at least.
	if len(labels) <= min(name, value, set, 4*count) {
		return nil
	}
	n := 0
	for rest := labels; len(rest) > 0; n++ {
		var k, v []byte
		k, rest = cutBytes(rest)
		v, rest = cutBytes(rest)
		switch {
		case len(k) > name:
			return fault.Errorf(fault.Invalid, "label name %.64q of %d bytes, the table takes at most %d", string(k), len(k), name)
		case len(v) > value:
			return fault.Errorf(fault.Invalid, "label %.64q has a value of %d bytes, the table takes at most %d", string(k), len(v), value)
		}
	}
	switch {
	case len(labels) > set:
		return fault.Errorf(fault.Invalid, "labels of %d bytes, the table takes at most %d", len(labels), set)
	case n > count:
		return fault.Errorf(fault.Invalid, "%d labels, the table takes at most %d", n, count)
	}
	return nil
}

// cutBytes cuts a string with its length off canonical labels.
func cutBytes(b []byte) (head, rest []byte) {
	n, k := binary.Uvarint(b)
	return b[k : k+int(n)], b[k+int(n):]
}

func orMax(limit int) int {
	if limit == 0 {
		return math.MaxInt / 8
	}
	return limit
}

// SetLabelLimits sets the limits for series that are new from now on. Those that have a number keep it. A Dict
// without limits has only the format's bounds.
func (d *Dict) SetLabelLimits(l LabelLimits) { d.limits.Store(&l) }

// LabelLimits are those in force; the zero value: only the format's.
func (d *Dict) LabelLimits() LabelLimits {
	if l := d.limits.Load(); l != nil {
		return *l
	}
	return LabelLimits{}
}

// LabelLimited counts the series that exceeded a limit when they came, in a dry run too.
func (d *Dict) LabelLimited() uint64 { return d.limited.Load() }

// limit says why labels that have no number get none, or nil.
func (d *Dict) limit(labels []byte) error {
	l := d.limits.Load()
	if l == nil {
		return nil
	}
	err := l.Check(labels)
	if err == nil {
		return nil
	}
	d.limited.Add(1)
	if l.DryRun {
		return nil
	}
	return err
}

// Guard lets f decide about every series that is new, given the number of series so far, and whether the Dict that this
// one follows has it; an error refuses the series and reaches the decoder as it is. f is called under the Dict's lock, so
// it must be short and must not call the Dict. Guard is called before the Dict is used.
func (d *Dict) Guard(f func(known int, again bool) error) { d.guard = f }

// Follow says which Dict this one follows; nil: none any more.
func (d *Dict) Follow(old *Dict) { d.before.Store(old) }

// askLocked asks the guard for one more series. The labels do not reach it: they would have to be allocated.
func (d *Dict) askLocked(labels []byte) error {
	if d.guard == nil {
		return nil
	}
	return d.guard(d.series.len(), d.again(labels))
}

// again reports whether the Dict that this one follows has the series.
func (d *Dict) again(labels []byte) bool {
	old := d.before.Load()
	if old == nil {
		return false
	}
	_, again := old.canon.get(maphash.Bytes(old.seeds[0], labels), labels, &old.series)
	return again
}
