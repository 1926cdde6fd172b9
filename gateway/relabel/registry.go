package relabel

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Registry holds the rules of all tables. Safe for concurrent use.
type Registry struct {
	force atomic.Pointer[inForce]
}

// inForce is the rules that apply now.
type inForce struct {
	settings Settings
	others   *Rules // of tables without rules of their own; nil: none
	tables   map[string]*Rules
}

// New makes a registry. Errors: Invalid.
func New(s Settings) (*Registry, error) {
	r := &Registry{}
	r.force.Store(&inForce{})
	return r, r.Reload(s)
}

// Reload puts other rules in force, for series to come and for known ones alike. A table with the same rules keeps its
// Rules. Settings with a mistake change nothing. Errors: Invalid.
func (r *Registry) Reload(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	old := r.force.Load()
	now := &inForce{settings: s, tables: map[string]*Rules{}}
	var err error
	if now.others, err = rules(old.others, s.Write); err != nil {
		return err
	}
	for name, t := range s.Tables {
		if now.tables[name], err = rules(old.of(name), slices.Concat(s.Write, t.Write)); err != nil {
			return err
		}
	}
	r.force.Store(now)
	return nil
}

// Settings are those in force.
func (r *Registry) Settings() Settings { return r.force.Load().settings }

// Of returns the rules of a table; nil: none.
func (r *Registry) Of(table string) point.Relabeller {
	if rules := r.force.Load().of(table); rules != nil {
		return rules
	}
	return nil
}

func (f *inForce) of(table string) *Rules {
	if t, ok := f.tables[table]; ok {
		return t
	}
	return f.others
}

// rules makes Rules of a list, or returns the old ones where they are the same; nil where there are none.
func rules(old *Rules, list []*relabel.Config) (*Rules, error) {
	if len(list) == 0 {
		return nil, nil
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "write_relabel_configs")
	}
	if old != nil && old.text == string(text) {
		return old, nil
	}
	return &Rules{configs: list, text: string(text)}, nil
}
