package main

import (
	"slices"
	"strings"
)

const shades = 4

// shrink looks for the least that still breaks the same promise: fewer kinds of faults, servers and tables, then fewer
// decisions of the nemesis (delta debugging). Leaving a part out changes all that is drawn after it, so each try is played
// in several shades. It plays at most most runs, each some three times as long as the first.
func shrink(r Result, most int) (least Result, runs int) {
	broken := promise(r.Broken)
	try := func(o Options) bool {
		for range shades {
			if runs++; runs > most {
				return false
			}
			if next := Run(o, nil); next.Broken != "" && promise(next.Broken) == broken {
				least = next
				return true
			}
			o.Shade++
		}
		return false
	}
	least = r
	o := r.Options
	o.Events = 3 * max(r.Events, 1) // with fewer faults more is delivered in the same time
	try(o)
	fewer(&least, try)
	for i := range faultNames { // not the kinds in use: the decisions would change
		o := least.Options
		if f := faults(1 << i); o.Faults.has(f) && !slices.Contains(struck, f) {
			o.Faults &^= f
			try(o)
		}
	}
	for _, less := range []func(*Options){func(o *Options) { o.Tables-- }, func(o *Options) { o.Gateways-- }, func(o *Options) { o.Servers-- }} {
		for {
			o := least.Options
			less(&o)
			if o.Tables < 1 || o.Gateways < 1 || o.Servers < 1 || !try(o) {
				break
			}
		}
	}
	fewer(&least, try)
	if o = least.Options; least.Events < o.Events {
		o.Events = max(least.Events, 1)
		runs--
		try(o)
	}
	return least, min(runs, most)
}

// fewer leaves decisions out: all but one, else halves, then smaller parts, as long as the promise stays broken.
func fewer(least *Result, try func(Options) bool) {
	all := make([]int, 0, len(least.done))
	for _, d := range least.done {
		all = append(all, d.n)
	}
	if len(all) > 1 {
		for _, n := range all {
			o := least.Options
			if o.Only = []int{n}; try(o) {
				return
			}
		}
	}
	for parts := 2; len(all) > 0; {
		size, gone := (len(all)+parts-1)/parts, false
		for lo := 0; lo < len(all); lo += size {
			o := least.Options
			o.Only = append(slices.Concat([]int{}, all[:lo]), all[min(lo+size, len(all)):]...)
			if o.Only == nil {
				o.Only = []int{} // none, not all
			}
			if try(o) {
				all, gone = o.Only, true
				break
			}
		}
		switch {
		case gone:
			parts = max(parts-1, 2)
		case size == 1:
			return
		default:
			parts = min(2*parts, len(all))
		}
	}
}

// promise is the promise that a violation breaks: the word before the colon, or all of it.
func promise(broken string) string {
	word, _, _ := strings.Cut(broken, ":")
	return word
}

// Schedule lists the decisions that were carried out.
func (r Result) Schedule() string {
	var lines []string
	for _, d := range r.done {
		lines = append(lines, d.text)
	}
	return strings.Join(lines, "\n")
}
