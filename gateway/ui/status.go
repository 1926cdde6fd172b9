package ui

import (
	"context"
	"time"
)

// Source gives the state of things now. It may be called from many goroutines, and answers from memory or within the
// context: what it cannot find out it leaves at zero and notes in Problems.
type Source func(ctx context.Context) Status

// Status is what a page shows.
type Status struct {
	Version string    `json:"version"`
	Role    string    `json:"role"` // standalone, gateway, storage
	Now     time.Time `json:"now"`
	// Problems are sentences a person should read first.
	Problems []string `json:"problems,omitempty"`
	// CoordinationAge is how long ago the coordination store was last heard; negative: there is none to hear.
	CoordinationAge time.Duration `json:"coordination_age_ns"`
	Servers         []Server      `json:"servers"`
	Tables          []Table       `json:"tables"`
	Topics          []Topic       `json:"topics,omitempty"`
}

// Server is a storage server.
type Server struct {
	ID       string  `json:"id"`
	Addr     string  `json:"addr,omitempty"`
	Host     string  `json:"host,omitempty"`
	Zone     string  `json:"zone,omitempty"`
	Live     bool    `json:"live"`
	Draining bool    `json:"draining,omitempty"`
	Load     float64 `json:"load"` // 1: all it can do
	Leads    int     `json:"leads"`
	Bytes    uint64  `json:"bytes"`
	Scrub    *Scrub  `json:"scrub,omitempty"` // nil: not known
}

// Scrub is how far a server is with reading its segments again to see that they are whole.
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
	Partitions []Partition   `json:"partitions"` // by time, then ring
}

// Partition is a rectangle of the keyspace. Ring bounds are shares of the ring, 0 to 1.
type Partition struct {
	ID     uint64    `json:"id"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	RingLo float64   `json:"ring_lo"`
	RingHi float64   `json:"ring_hi"`
	State  string    `json:"state"`
	Leader string    `json:"leader,omitempty"` // "": nobody
	Epoch  uint64    `json:"epoch,omitempty"`
	// LeaseAge is how long the leader has been seen to lead; 0: not known.
	LeaseAge time.Duration `json:"lease_age_ns,omitempty"`
	Offline  string        `json:"offline,omitempty"` // why
	Servers  []string      `json:"servers"`
	Rows     uint64        `json:"rows"`
	Bytes    uint64        `json:"bytes"`
}

// Topic is one Kafka partition that this process reads.
type Topic struct {
	Cluster   string `json:"cluster"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Lag       int64  `json:"lag"` // records; -1: not known
	Committed int64  `json:"committed"`
	Rows      uint64 `json:"rows"`
	Bytes     uint64 `json:"bytes"`
	Poison    uint64 `json:"poison"`
	Paused    bool   `json:"paused,omitempty"`
	// RowsPerSecond is the mean since the page was asked before, or since the process began to read.
	RowsPerSecond float64 `json:"rows_per_second"`
	LastError     string  `json:"last_error,omitempty"`
}
