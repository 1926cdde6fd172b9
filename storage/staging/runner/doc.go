// Package runner keeps staged frames on disk, forwards them to leaders, and lets readers see them (package staging has the rules).
//
//	Stage ─▶ Admit ─▶ announce the table ─▶ append to the log ─▶ fsync, one for all that wait ─▶ Logged ─▶ ack
//	Run   ─▶ Due ─▶ route by the newest map ─▶ Insert at each leader, level all ─▶ Forwarded ─▶ log that, notify the other holders
//	Read  ─▶ the frames held, decoded, merged by rank
//
// A table is announced in this server's row of the registry before its first frame is acked, and as long as frames of it are held:
// gateways ask only servers that announce a table, so reads cost nothing where nothing is staged.
//
// Goroutines: those of callers; Run's, one for each frame under way.
package runner
