// Package runner carries out the decisions of package follow: it watches maps, leaders and timers, and cancels questions.
//
//	Begin ─▶ ask a server under the attempt's context ─▶ End          goroutine: a timer's, after follow.SilenceMax
//	Await ─▶ refresh the map ─▶ wait for maps, leaders, a timer ─▶ the next try, or the end
//
// Writes (gateway/forward) and reads (gateway/query/fanout) use it alike.
package runner
