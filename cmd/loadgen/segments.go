package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/cmd/internal/rival"
)

// segments is a spillway's own count of its segments: files on disk also hold the log, of which 64 MiB stay open however
// little they hold.
type segments struct{ count, bytes, rows, head, log float64 }

// segmentsOf asks the server; zero for other servers.
func segmentsOf(t *rival.Server) (s segments, err error) {
	if t.Admin == "" {
		return s, nil
	}
	resp, err := http.Get(t.URL + "/metrics")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "spillway_server_segments":
			s.count = n
		case "spillway_server_segment_bytes":
			s.bytes = n
		case "spillway_server_segment_rows":
			s.rows = n
		case "spillway_server_head_bytes":
			s.head = n
		case "spillway_brick_log_bytes":
			s.log = n
		}
	}
	return s, err
}

// String shows how densely rows are packed once they are in segments.
func (s segments) String() string {
	if s.rows == 0 {
		return ""
	}
	return fmt.Sprintf("  %.2f B/smp in %.0f segments", s.bytes/s.rows, s.count)
}
