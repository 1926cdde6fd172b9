// Package labelorder finds the first series in label order by their postings, so that a look-up of a few of a million series reads the labels of a few. Values keeps the first
// values of a label where they come in no order.
//
//	first three of {job="api"}                 __name__   "cpu" ─▶ 1 series      in
//	                                                      "mem" ─▶ 10,000        too many: one label further
//	                                                      "net" ─▶ 10,000        behind
//	   of those of __name__="mem"              host       "h1"  ─▶ 1             in
//	                                                      "h2"  ─▶ 1             in
//
// Order is that of point.Labels.Compare: label by label, names before values, the shorter set first.
package labelorder
