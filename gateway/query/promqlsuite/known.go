package promqlsuite

// Known is a case of the scripts that our storage answers differently, and the reason.
type Known struct {
	File   string
	Line   int // of the eval command
	Reason string
}

// The reasons there are.
const (
	noStart = "rows have no start timestamp: remote write's is not kept, so rate and its kin see no reset that only a " +
		"start timestamp tells of"
	noHint = "a histogram keeps the counter-reset hint it was written with; Prometheus' TSDB derives not_reset for every " +
		"sample that follows another in its chunk"
)

// KnownCases lists every case of prometheus v0.315.0 that differs.
func KnownCases() []Known {
	var all []Known
	add := func(file, reason string, lines ...int) {
		for _, line := range lines {
			all = append(all, Known{File: file, Line: line, Reason: reason})
		}
	}
	add("start_timestamps.test", noStart,
		8, 13, 18, 24, 42, 66, 74, 82, 144, 169, 189, 207, 210, 213, 217, 234, 240, 246, 259, 276, 284, 289, 305)
	add("native_histograms.test", noHint, 1747, 1752, 1811, 1816, 1821, 1826, 1880, 1885)
	add("range_queries.test", noHint, 93)
	return all
}
