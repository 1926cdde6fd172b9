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

// KnownCases lists every case of prometheus v0.316.0 that differs.
func KnownCases() []Known {
	var all []Known
	add := func(file, reason string, lines ...int) {
		for _, line := range lines {
			all = append(all, Known{File: file, Line: line, Reason: reason})
		}
	}
	add("start_timestamps.test", noStart,
		8, 13, 18, 24, 29, 34, 47, 71, 79, 87, 149, 174, 194, 259, 282, 299, 326, 418, 422, 438, 441, 444, 448, 465, 471, 477, 490, 507, 515,
		520, 536)
	add("native_histograms.test", noHint, 1884, 1889, 1948, 1953, 1958, 1963, 2017, 2022)
	add("range_queries.test", noHint, 93)
	return all
}
