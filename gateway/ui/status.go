package ui

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// Path is where the status is served as JSON.
const Path = "/api/v1/status/cluster"

// Ask is a reader's request for parts of a Status.
type Ask struct {
	Table      string // this one alone; "": all
	Partitions bool   // Table.Partitions, too
	Forecast   bool   // Table.Forecast, too; of one table alone
}

// Source returns the present state. It may be called from many goroutines, and answers from memory or within the context:
// unknown fields are nil, and the cause is in Problems.
type Source func(ctx context.Context, a Ask) Status

// JSON answers with the status as JSON, in the envelope of the Prometheus API. partitions=none leaves the partitions
// out, table= all tables but one; forecast=show adds the forecast of that one.
func JSON(source Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		s := source(r.Context(), Ask{Table: q.Get("table"), Partitions: q.Get("partitions") != "none", Forecast: q.Get("forecast") == "show" && q.Get("table") != ""})
		Answer(w, r, s)
	})
}

// Answer writes data in the envelope of the Prometheus API, compressed where the reader accepts that: a map of ten
// thousand partitions is three megabytes.
func Answer(w http.ResponseWriter, r *http.Request, data any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Encoding")
	var to io.Writer = w
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is one there is
		defer func() { _ = z.Close() }()               // the reader is gone
		to = z
	}
	_ = json.NewEncoder(to).Encode(map[string]any{"status": "success", "data": data})
}

// Status is the content of a page.
type Status struct {
	Version string    `json:"version"`
	Role    string    `json:"role"` // standalone, gateway, storage
	Now     time.Time `json:"now"`
	// Problems are sentences a person should read first.
	Problems []string `json:"problems,omitempty"`
	// CoordinationAge is the time since the coordination store last answered; negative: there is no such store.
	CoordinationAge time.Duration `json:"coordination_age_ns"`
	// Whole: the reader may see all of the process, so that an empty list really is empty.
	Whole bool `json:"whole"`
	// GrownSince is when this process began to count Server.Grown; nil: it did not.
	GrownSince *time.Time `json:"grown_since,omitempty"`

	Servers []Server `json:"servers"`
	Tables  []Table  `json:"tables"`
	Topics  []Topic  `json:"topics,omitempty"`
}

// Server is a storage server.
type Server struct {
	ID       string   `json:"id"`
	Addr     string   `json:"addr,omitempty"`
	Host     string   `json:"host,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Live     bool     `json:"live"`
	Draining bool     `json:"draining,omitempty"`
	Load     *float64 `json:"load"` // 1: full; nil: unknown
	Leads    int      `json:"leads"`
	Bytes    *uint64  `json:"bytes"`           // of the partitions it leads; nil: unknown
	Grown    *uint64  `json:"grown"`           // rows by which the partitions it leads grew since this process was first asked; nil: unknown
	Damaged  *int     `json:"damaged"`         // partitions that it leads and that are not read; nil: unknown
	Disk     *Disk    `json:"disk,omitempty"`  // nil: unknown
	Room     *int64   `json:"room,omitempty"`  // for how many more bytes its disk has room beside the reserve; nil: unknown, or Disk says more
	Scrub    *Scrub   `json:"scrub,omitempty"` // nil: unknown
}

// Disk is the file system of a server's data.
type Disk struct {
	Free  uint64 `json:"free"`
	Total uint64 `json:"total"`
}

// Scrub is a server's progress in reading its segments again to verify them.
type Scrub struct {
	PassBegan      time.Time `json:"pass_began"` // zero: none yet
	PassEnded      time.Time `json:"pass_ended"` // of the last whole one; zero: none yet
	Segments       int       `json:"segments"`
	Checked        int       `json:"checked"`
	BytesPerSecond int64     `json:"bytes_per_second"`
	Damaged        int       `json:"damaged"` // found by this process
}

// Table is a table's map.
type Table struct {
	Name       string        `json:"name"`
	Seq        uint64        `json:"seq"`
	Retention  time.Duration `json:"retention_ns"` // 0: for ever
	Width      time.Duration `json:"partition_width_ns"`
	Replicas   int           `json:"replicas"`
	MinInSync  int           `json:"min_in_sync"` // placements that must keep an acked row
	Partitions []Partition   `json:"partitions"`  // by time, then ring; nil: not asked for

	// Sums over the partitions. Nil: unknown, because one partition's is unknown.
	Count   int        `json:"partition_count"`
	Unknown int        `json:"unknown_partitions"` // partitions with unknown rows and bytes
	Rows    *uint64    `json:"rows"`
	Bytes   *uint64    `json:"bytes"`
	Oldest  *time.Time `json:"oldest"` // nil with rows 0: there is none
	Newest  *time.Time `json:"newest"`

	// Staged are the rows that wait for their leader or their time, by server; servers without any are left out.
	Staged []Staged `json:"staged,omitempty"`
	// Smear is what gateways do with rows of narrow partitions; nil: the table asks for nothing.
	Smear *Smear `json:"smear,omitempty"`
	// Forecast has the columns of the ring, where it was asked for and the master has recorded them; Target is the size near which partitions should close, as this process is set.
	Forecast []Forecast `json:"forecast,omitempty"`
	Target   int64      `json:"target_bytes,omitempty"`
}

// Smear is the window in which rows of a table wait for their time.
type Smear struct {
	Setting string        `json:"setting"`
	Window  time.Duration `json:"window_ns"` // 0: rows do not wait
	Why     string        `json:"why"`
}

// Forecast is how a column of a table is expected to grow, and how its partitions are laid out. Ring bounds are shares of the ring, 0 to 1.
type Forecast struct {
	RingLo        float64    `json:"ring_lo"`
	RingHi        float64    `json:"ring_hi"`
	Since         *time.Time `json:"since"` // begin of the record; nil: there is none
	Days          int        `json:"days"`  // past days included
	Known         bool       `json:"known"` // enough of the last minutes was observed
	RowsPerSecond float64    `json:"rows_per_second"`
	BytesPerRow   float64    `json:"bytes_per_row"` // with its share of the next
	// BytesPerPartition is what each partition repeats: the definitions of its series.
	BytesPerPartition int64 `json:"bytes_per_partition"`
	// Short is how much was observed at all, if that is less than five minutes.
	Short      time.Duration   `json:"short_ns,omitempty"`
	Points     []ForecastPoint `json:"points"`
	Partitions []Expected      `json:"partitions"` // the newest that ended, then those to come
}

// ForecastPoint is a rate that is expected.
type ForecastPoint struct {
	At             time.Time `json:"at"`
	BytesPerSecond float64   `json:"bytes_per_second"`
}

// Expected is a partition with its size, or the one that it should get.
type Expected struct {
	ID       uint64    `json:"id"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Bytes    *int64    `json:"bytes"`    // nil: unknown
	Expected bool      `json:"expected"` // by the forecast; else as it is
	Server   string    `json:"server"`   // of the first placement
}

// Staged are rows of a table that are staged on a server: an acked row lies on as many servers as an ack needs.
type Staged struct {
	Server  string     `json:"server"`
	Rows    int        `json:"rows"`
	Bytes   int64      `json:"bytes"`             // encoded
	Later   int        `json:"later_rows"`        // smeared, and not due yet
	Sole    int        `json:"sole_rows"`         // rows that no other server that answers holds
	Oldest  *time.Time `json:"oldest"`            // when the oldest came
	Overdue *time.Time `json:"overdue,omitempty"` // since when the oldest waits for its leader; nil: none does
}

// Partition is a rectangle of the keyspace. Ring bounds are shares of the ring, 0 to 1.
type Partition struct {
	ID     uint64    `json:"id"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	RingLo float64   `json:"ring_lo"`
	RingHi float64   `json:"ring_hi"`
	State  string    `json:"state"`
	Leader string    `json:"leader,omitempty"` // "": no server
	// Ahead: its time has not come, so that no server leads it yet. It has no rows.
	Ahead bool   `json:"ahead,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"` // of the leader, or of the last one; 0: unknown
	// LeaseAge is how long the leader has been seen to lead; 0: unknown.
	LeaseAge time.Duration `json:"lease_age_ns,omitempty"`
	Offline  string        `json:"offline,omitempty"` // why
	// Damaged and Unflushed are the faults of its segments and of its flushes; "": none.
	Damaged   string   `json:"damaged,omitempty"`
	Unflushed string   `json:"unflushed,omitempty"`
	Differs   string   `json:"differs,omitempty"` // which copies hold something else than the leader; "": none that was compared
	Servers   []string `json:"servers"`
	// InSync are the servers that have every acked row, in the order in which rows pass them, and Behind those with a placement that is not in sync: neither
	// is needed for an ack nor may lead. Both nil: unknown. Empty: no row was ever acked, so that any server with a placement may lead.
	InSync []string `json:"in_sync"`
	Behind []string `json:"behind"`
	Empty  bool     `json:"empty,omitempty"`
	Rows   *uint64  `json:"rows"`  // nil: unknown
	Bytes  *uint64  `json:"bytes"` // nil: unknown
	// Transfers are its rows on their way: to servers that are to have it, or to its heirs.
	Transfers []Transfer `json:"transfers,omitempty"`
}

// Transfer is how far rows of a partition are on their way.
type Transfer struct {
	From           string         `json:"from"`           // the server that the partition leaves; else its leader
	To             string         `json:"to,omitempty"`   // a server; "": Into
	Into           []uint64       `json:"into,omitempty"` // its heirs, after a split or a merge
	Done           uint64         `json:"done_bytes"`
	Total          uint64         `json:"total_bytes"`
	BytesPerSecond uint64         `json:"bytes_per_second"` // since it began; 0: not known yet
	Since          time.Time      `json:"since"`
	Left           *time.Duration `json:"left_ns"` // at that rate; nil: not known yet
}

// Topic is one Kafka partition that this process reads.
type Topic struct {
	Cluster   string `json:"cluster"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Lag       int64  `json:"lag"` // records; -1: unknown
	Committed int64  `json:"committed"`
	Rows      uint64 `json:"rows"`
	Bytes     uint64 `json:"bytes"`
	Poison    uint64 `json:"poison"`
	Paused    bool   `json:"paused,omitempty"`
	// RowsPerSecond is the mean since the page was asked before, or since the process began to read.
	RowsPerSecond float64 `json:"rows_per_second"`
	LastError     string  `json:"last_error,omitempty"`
}
