package relabel

import (
	"errors"
	"maps"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings are the block "relabel" of the configuration file.
type Settings struct {
	Write  []*relabel.Config `yaml:"write_relabel_configs,omitempty" help:"Rules for the series of all tables, in the form of Prometheus' write_relabel_configs: [limits.md](limits.md#relabelling)."`
	Tables map[string]Table  `yaml:"tables,omitempty" help:"Rules for single tables, which follow those of all tables."`
}

// Table is the rules of one table.
type Table struct {
	Write []*relabel.Config `yaml:"write_relabel_configs,omitempty" help:"Rules for the series of this table."`
}

// RulesMax bounds a list of rules: each new series passes all rules.
const RulesMax = 1000

// Validate reports every mistake at once, and fills in the defaults of the rules. Errors: Invalid.
func (s *Settings) Validate() error {
	errs := []error{check("relabel", s.Write)}
	for _, name := range slices.Sorted(maps.Keys(s.Tables)) {
		errs = append(errs, check("relabel.tables."+name, s.Tables[name].Write))
	}
	return errors.Join(errs...)
}

func check(where string, rules []*relabel.Config) error {
	where += ".write_relabel_configs"
	if len(rules) > RulesMax {
		return fault.Errorf(fault.Invalid, "%s has %d rules, at most %d are taken", where, len(rules), RulesMax)
	}
	var errs []error
	for i, r := range rules {
		if r == nil {
			errs = append(errs, fault.Errorf(fault.Invalid, "%s: rule %d is empty", where, i+1))
		} else if err := r.Validate(model.UTF8Validation); err != nil {
			errs = append(errs, fault.Wrap(err, fault.Invalid, "%s: rule %d", where, i+1))
		}
	}
	return errors.Join(errs...)
}
