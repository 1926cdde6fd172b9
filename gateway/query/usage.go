package query

import (
	"errors"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// usage bounds the series, rows and bytes that one query loads, over all its selectors. Safe for concurrent use.
type usage struct {
	// Constant after Reader.usage.
	seriesMax, rowsMax int
	loan               *budget.Loan  // nil: memory is not counted
	of                 *limits.Query // the table's limits; nil: none
	growth             growth        // of labels, by the functions of the query
	turn               *lane.Turn    // of the goroutine that reads; nil: it needs none
	lookup             *lane.Turn    // of a look-up that reads; nil: it is a query
	share              lane.Share    // of all its goroutines; guarded by the lane

	// Owned by the evaluation, constant while the engine evaluates.
	rooms   map[*labels.Matcher]room
	covered int64 // bytes of room that the booked samples of the engine have

	mu struct {
		sync.Mutex
		loads
	}
}

// loads counts the data loaded so far; bytes are those that stay until the query ends.
type loads struct {
	series, rows int
	bytes        int64
	room         int64 // bytes that the engine's operators make room for
	roomBooked   int64 // of bytes
}

// state and restore undo loads that were in vain.
func (u *usage) state() loads {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.loads
}

func (u *usage) restore(l loads) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loan.Give(u.mu.bytes - l.bytes)
	u.mu.loads = l
}

// histRowBytes is how many bytes of an encoded histogram count as one row.
const histRowBytes = 16

// Memory of a series besides its labels and rows, and of a row: time and value, or a decoded histogram.
const (
	seriesBytes = 250
	rowBytes    = 16
	histBytes   = 64
)

// bytesOf is the memory of a series' rows.
func bytesOf(s *peer.Series) int64 {
	n := int64(len(s.Times)) * rowBytes
	for i := range s.Hists {
		n += int64(histBytes + len(s.Hists[i].H))
	}
	return n
}

// count adds a series that is read and dropped.
func (u *usage) count(s *peer.Series) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.countLocked(s)
}

func (u *usage) countLocked(s *peer.Series) error {
	u.mu.series++
	u.mu.rows += len(s.Times)
	for _, h := range s.Hists {
		u.mu.rows += 1 + len(h.H)/histRowBytes
	}
	return u.boundedLocked()
}

// load adds series and rows that were read elsewhere.
func (u *usage) load(series, rows int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.series, u.mu.rows = u.mu.series+series, u.mu.rows+rows
	return u.boundedLocked()
}

// unload subtracts what load added.
func (u *usage) unload(series, rows int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.series, u.mu.rows = u.mu.series-series, u.mu.rows-rows
}

func (u *usage) boundedLocked() error {
	if err := u.of.Loads(u.mu.series, u.mu.rows); err != nil {
		return err
	}
	switch {
	case u.mu.series > u.seriesMax:
		return fault.Errorf(fault.TooLarge, "the query loads more than %d series; select fewer or raise query.series_max", u.seriesMax)
	case u.mu.rows > u.rowsMax:
		return fault.Errorf(fault.TooLarge, "the query loads more than %d rows; select a shorter range or fewer series, or raise query.rows_max", u.rowsMax)
	}
	return nil
}

// drop subtracts the bytes of a series that was kept.
func (u *usage) drop(bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.bytes -= bytes
	u.loan.Give(bytes)
}

// keep adds a series that stays in memory until the query ends, or is dropped, with the room that the engine's operators make for it.
func (u *usage) keep(s *peer.Series, room int64) (bytes int64, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.countLocked(s); err != nil {
		return 0, err
	}
	if err := u.roomLocked(room); err != nil {
		return 0, needed(err)
	}
	n := bytesOf(s) + seriesBytes + u.growth.of(len(s.Labels))
	if err := u.loan.TakeSoon(n); err != nil {
		return 0, needed(err)
	}
	u.mu.bytes += n
	return n, nil
}

// shortage is the error of a loan that is as large as it may be.
type shortage struct{ error }

func (s shortage) Unwrap() error { return s.error }

// isShortage looks through the engine's wrapping of storage errors.
func isShortage(err error) bool {
	var s shortage
	var stored promql.ErrStorage
	return errors.As(err, &s) || errors.As(err, &stored) && errors.As(stored.Err, &s)
}

// needed adds the remedy to an error of missing memory.
func needed(err error) error {
	if fault.Is(err, fault.TooLarge) {
		return fault.Wrap(shortage{err}, fault.TooLarge, "the query needs too much memory: select fewer series or a shorter range, or raise query.bytes_max and --memory")
	}
	return fault.Annotate(err, "the query needs more memory than is free")
}
