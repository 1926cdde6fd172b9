package forward

import "github.com/spillwaydb/spillway/protocols/point"

// mergedTold bounds the metrics of a table that are named in the log for being two fields.
const mergedTold = 100

// warnMerged counts series that are two fields of line protocol, and names each metric once.
func (t *Table) warnMerged(b *point.Batch) {
	if b.Merged == 0 {
		return
	}
	t.f.metrics.merged.Add(float64(b.Merged))
	t.merged.Lock()
	defer t.merged.Unlock()
	for _, m := range b.Merges {
		if t.merged.told[m.Metric] || len(t.merged.told) >= mergedTold {
			continue
		}
		if t.merged.told == nil {
			t.merged.told = map[string]bool{}
		}
		t.merged.told[m.Metric] = true
		t.f.deps.Log.Warn("two fields are one series: their rows cannot be told apart; rename one of them, or set another separator",
			"table", t.name, "metric", m.Metric, "measurement", m.Measurement, "field", m.Field, "other_measurement", m.OtherMeasurement, "other_field", m.OtherField)
	}
}
