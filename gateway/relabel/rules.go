package relabel

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Rules are the rules of one table, at least one. Safe for concurrent use.
type Rules struct {
	configs []*relabel.Config
	text    string // as YAML, to compare
}

var _ point.Relabeller = (*Rules)(nil)

// Relabel implements point.Relabeller.
func (r *Rules) Relabel(l point.Labels) (out point.Labels, keep bool, err error) {
	in := labels.NewScratchBuilder(8)
	l.Range(func(name, value string) bool {
		in.Add(name, value)
		return true
	})
	b := labels.NewBuilder(in.Labels()) // in their order already
	if !relabel.ProcessBuilder(b, r.configs...) {
		return "", false, nil
	}
	var made point.LabelsBuilder
	b.Range(func(x labels.Label) { made.Add([]byte(x.Name), []byte(x.Value)) })
	out, err = made.Labels()
	if err != nil {
		return "", false, fault.Wrap(err, fault.Invalid, "write_relabel_configs make of %.300s a series that cannot be stored", l.String())
	}
	if out == l {
		return l, true, nil
	}
	return out, true, nil
}
