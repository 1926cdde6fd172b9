package forward

import "github.com/spillwaydb/spillway/protocols/point"

// mergedWarnedMax bounds the metrics of a table that are named in the log for being two fields.
const mergedWarnedMax = 100

// warnMerged counts series that are two fields of line protocol, and names each metric once.
func (t *Table) warnMerged(b *point.Batch) {
	if b.Merged == 0 {
		return
	}
	t.f.metrics.merged.Add(float64(b.Merged))
	t.merged.Lock()
	defer t.merged.Unlock()
	for _, m := range b.Merges {
		if t.merged.warned[m.Metric] || len(t.merged.warned) >= mergedWarnedMax {
			continue
		}
		if t.merged.warned == nil {
			t.merged.warned = map[string]bool{}
		}
		t.merged.warned[m.Metric] = true
		t.f.deps.Log.Warn("two fields are one series: their rows cannot be distinguished; rename one of them, or set another separator",
			"table", t.name, "metric", m.Metric, "measurement", m.Measurement, "field", m.Field, "other_measurement", m.OtherMeasurement, "other_field", m.OtherField)
	}
}
