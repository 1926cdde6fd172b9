package columns

import "slices"

// finish evaluates the stages from the first aggregation on, over the few columns that are left.
func (r *run) finish() (*Answer, error) {
	if r.groups == nil {
		return r.answer(r.kept, false)
	}
	return r.answer(r.groups.finish(), true)
}

// answer evaluates the stages after the first aggregation, to its columns if the plan has one, and writes them unless the
// workers did.
func (r *run) answer(columns []Column, write bool) (*Answer, error) {
	base, err := r.headMeter()
	if err != nil {
		return nil, err
	}
	a := &Answer{Columns: columns}
	if write {
		if columns, err = r.upper(base, columns); err != nil {
			return nil, err
		}
		if a.Columns, err = r.write(columns); err != nil {
			return nil, err
		}
	}
	for n := range r.names {
		a.Names = append(a.Names, n)
	}
	a.Visited, a.Read, a.Peak = r.meter.processed, r.meter.read, r.meter.peak
	return a, nil
}

// write writes the columns that have values, or returns them.
func (r *run) write(columns []Column) ([]Column, error) {
	columns = slices.DeleteFunc(columns, func(c Column) bool { return Present(c.Values) == 0 })
	if r.env.Writer == nil {
		return columns, nil
	}
	w := r.env.Writer()
	for i := range columns {
		n := Present(columns[i].Values)
		if err := r.book(w.Bytes(&columns[i], n)); err != nil {
			return nil, err
		}
		w.Append(&columns[i], n)
	}
	w.Flush()
	return nil, nil
}

// headMeter counts the samples that the operators of the head hold, and returns the samples held for the numbers of later stages.
func (r *run) headMeter() (int, error) {
	base := 0
	for _, s := range r.plan.Stages {
		base += s.Held
	}
	for i, s := range r.head {
		base -= s.Held
		if err := r.operatorMeter(s, r.counts[i], r.counts[i+1], base); err != nil {
			return 0, err
		}
	}
	return base, nil
}

// operatorMeter counts one operator; base is the count held elsewhere.
func (r *run) operatorMeter(s Stage, in, out []int, base int) error {
	if s.Operator.Negate {
		return nil
	}
	if !s.Operator.Swapped {
		if err := r.meter.keep(r.steps); err != nil {
			return err
		}
	}
	if err := r.meter.operator(in, out); err != nil {
		return err
	}
	r.meter.held = base + sumOf(out)
	return nil
}

// upper applies the stages behind the first aggregation to its columns.
func (r *run) upper(base int, columns []Column) ([]Column, error) {
	var in []int
	for i, s := range r.tail {
		base -= s.Held
		if s.Operator != nil {
			if err := r.apply(s, columns, in, base); err != nil {
				return nil, err
			}
			in = countAll(columns, r.steps)
			continue
		}
		if i > 0 {
			var err error
			if columns, err = Aggregate(s.Aggregation, columns, r.steps, r.book); err != nil {
				return nil, err
			}
		}
		in = countAll(columns, r.steps)
		r.meter.held = base + sumOf(in)
		r.meter.peak = max(r.meter.peak, r.meter.held)
	}
	return columns, nil
}

func (r *run) apply(s Stage, columns []Column, in []int, base int) error {
	for i := range columns {
		s.Operator.Apply(columns[i].Values)
	}
	if s.Operator.DropsName() {
		if err := DropAll(columns); err != nil {
			return err
		}
	}
	return r.operatorMeter(s, in, countAll(columns, r.steps), base)
}

// Aggregate makes the columns of an aggregation. take books memory.
func Aggregate(a *Aggregation, columns []Column, steps int, take func(int64) error) ([]Column, error) {
	g := newGroups(a, steps, take)
	var key []byte
	for i := range columns {
		if c := &columns[i]; Present(c.Values) > 0 {
			key = a.Key(key[:0], c.Labels, c.Dropped)
			if err := g.add(key, c); err != nil {
				return nil, err
			}
		}
	}
	return g.finish(), nil
}

func countAll(columns []Column, steps int) []int {
	n := make([]int, steps)
	for i := range columns {
		for step, v := range columns[i].Values {
			if !IsAbsent(v) {
				n[step]++
			}
		}
	}
	return n
}

func sumOf(counts []int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}
