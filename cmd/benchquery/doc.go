// Command benchquery measures how fast servers answer what dashboards ask, side by side.
//
// Each server is started fresh, loaded with the same fleet by remote write, left to settle, and asked every query a few
// times over one connection, alone on the machine as far as that is quiet. A figure is the median of a query's times,
// answers read to their end; what counts is the ratio within one run.
//
//	fleet ─▶ rw1 bodies ─▶ server ─settle─▶ query × repeat ─▶ p50, ratios
//
//	benchquery -servers spillway,prometheus,victoriametrics -hosts 200 -hours 12
//
// Caches of whole answers are asked not to be used (nocache=1). A query to which servers give different numbers of
// series is marked: its times do not compare.
package main
