// Package lineproto turns Influx line protocol into a point.Batch, and outcomes into the answers Influx clients expect.
//
// It exists because names are where rivals spend their time: a line repeats its measurement and tags with every sample.
// Here the key of a line (measurement and tags, as written) is hashed once, the Dict returns the fields seen under it
// before, and each field is compared with the one expected next. A line seen before costs one hash and no allocation.
//
//	cpu,host=a,region=eu usage_user=58i,usage_idle=2.5,note="x" 1451606400000000000
//	└──────── key ─────┘ └──────────── fields ────────────────┘ └── scaled by Precision ──▶ Times
//	      │ one hash              │ compare with the template, in order
//	      ▼                       ▼
//	Dict.LookupLine ──▶ LineKey{usage_user → 17, usage_idle → 18} ──▶ IDs, Values
//	      │ unknown
//	      └──▶ unescape, check, sort ──▶ cpu_usage_user{host="a", region="eu"} ──▶ Dict.InternLabels, ExtendLine
//
// The grammar is that of github.com/influxdata/line-protocol/v2; every intended difference is listed in DESIGN.md and
// pinned by name in a test.
//
// A bad line is refused with its number, its text and the reason, and the lines beside it are kept (or the whole
// body is refused: Settings.Partial). Status codes and bodies of the three HTTP flavours are made in status.go from
// an Outcome (I8).
//
// Invariants: a line's rows are kept whole or not at all; they share one timestamp; line n of a body is item n of the
// batch; equal Settings, equal bytes and one Dict give equal series, and unequal Settings never share a template.
// Time and memory are linear in the body (I5).
//
// Non-goals: field types are not remembered, so a field may be an integer now and a float later; nothing is stored.
package lineproto
